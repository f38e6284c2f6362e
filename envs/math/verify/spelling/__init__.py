"""The spellings of answers, as people and models write them: characters, words, units and brackets. Knows no answers."""
