"""Keys of nodes: any integers, texts or UUIDs become node ids 0..N-1, out of core."""
