"""Authentication and authorization: SASL, TLS, credentials, principals, ACLs and quotas."""
