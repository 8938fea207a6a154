"""The transaction coordinator: transactional ids, their records, and the markers that end transactions."""
