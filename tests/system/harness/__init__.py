"""What the system tests stand on: installations of their own, an HTTP client, the API document."""
