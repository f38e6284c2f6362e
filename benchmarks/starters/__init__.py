"""How the models that ship were made: recipes, one YAML file a stage, and the code that plays them."""
