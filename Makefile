PYTHON ?= python3
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help:            ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'
