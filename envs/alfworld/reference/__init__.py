"""ALFWorld on textworld and the alfworld package, to check the native engine. Imported only on request."""
