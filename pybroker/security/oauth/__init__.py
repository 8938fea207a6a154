"""OAUTHBEARER, its tokens (JWT), the keys that sign them, and requests to web servers."""
