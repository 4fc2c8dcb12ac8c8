"""Features that a conversion makes itself: means over neighbours, computed outside of memory."""
