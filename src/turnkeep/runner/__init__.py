"""The runner: agents and tools, the turn loop, workers."""

from turnkeep.runner.agent import Agent
from turnkeep.runner.drive import Driver
from turnkeep.runner.tools import Tool, ToolContext, tool
from turnkeep.runner.worker import Worker

__all__ = ["Agent", "Driver", "Tool", "ToolContext", "Worker", "tool"]
