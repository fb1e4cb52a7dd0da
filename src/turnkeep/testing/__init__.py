"""For tests of agents: scripted servers, workers that die at chosen points, and a clock to put forward."""

from turnkeep.testing.clock import FakeClock
from turnkeep.testing.crash import CrashPoint, WorkerProcesses, WorkerRun
from turnkeep.testing.embeddings import EmbeddingServer
from turnkeep.testing.script import Exchange, Reply, ToolCall
from turnkeep.testing.server import ModelServer

__all__ = [
    "CrashPoint",
    "EmbeddingServer",
    "Exchange",
    "FakeClock",
    "ModelServer",
    "Reply",
    "ToolCall",
    "WorkerProcesses",
    "WorkerRun",
]
