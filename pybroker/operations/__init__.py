"""Questions of an operator about a whole cluster, which the commands and the console share."""
