"""From rows of tokens and advantages to optimiser steps."""
