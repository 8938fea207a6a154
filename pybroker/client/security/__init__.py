"""The settings of logins and of TLS: by them a client says its identity, and checks the broker's."""
