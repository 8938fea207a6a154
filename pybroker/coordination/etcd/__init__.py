"""etcd as the store of a cluster: `store` has the servers, `session` and `link` a client, `replica` the tree."""
