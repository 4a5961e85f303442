"""What keeps the book in order: it runs and compares notebooks, makes links, glossary and maps, and looks at the machine."""
