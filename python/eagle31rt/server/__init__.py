"""OpenAI-style HTTP server (extra [server]): app.py puts it together, command.py is `eagle31rt serve`."""
