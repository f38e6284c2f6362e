"""A shop to search, browse and buy in: the WebShop task, as text and as a site for a real browser."""
