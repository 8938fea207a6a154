"""Who somebody is, and what they may do: SASL, credentials, principals, ACLs. No I/O."""
