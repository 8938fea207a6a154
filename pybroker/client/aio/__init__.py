"""Producer and consumer for asyncio."""
