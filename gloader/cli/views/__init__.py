"""What commands show on the screen while they run."""
