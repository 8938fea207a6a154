"""One file per family of APIs. A handler decodes nothing and stores nothing: it asks its collaborators and answers."""
