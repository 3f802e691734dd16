"""State: servers and their client, immutable blobs of keyed state, and state inside a worker."""
