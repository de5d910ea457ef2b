"""KV caches for transformers (`GrowingCache`, `Int8Cache`), and the running mean of the V rows of any cache."""
