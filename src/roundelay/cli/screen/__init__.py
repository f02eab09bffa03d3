"""What a person sees of a command: tables, bars, curves of characters, how long it takes."""
