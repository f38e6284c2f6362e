"""How people and models spell answers: characters, words, units, brackets. Nothing here knows what an answer is."""
