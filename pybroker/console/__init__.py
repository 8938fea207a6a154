"""The console: a cluster in the browser, as a client of it that has only the rights of its viewer.

    browser -> guard (host, session, CSRF) -> views (one module a subject) -> clients (Admin, Consumer) -> any broker

Pages are rendered here, and work without JavaScript. What a broker returned is text until a template escapes it.
"""
