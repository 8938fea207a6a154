"""Request handlers, one file per family of APIs. A handler neither decodes nor stores; its collaborators do."""
