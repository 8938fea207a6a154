"""Who somebody is, and what they may do: mechanisms of SASL, credentials, and principals. No I/O."""
