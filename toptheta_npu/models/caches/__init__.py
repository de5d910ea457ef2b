"""Where the keys and values of a call lie, the running mean of the V rows, and the cache over several ranks."""
