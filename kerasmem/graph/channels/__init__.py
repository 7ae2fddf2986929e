"""A model as a graph of channel labels: what can be removed, and what goes with it."""

from kerasmem.graph.channels.groups import Groups
from kerasmem.graph.channels.labelled_calls import ChannelSubset
from kerasmem.graph.channels.walk import LabelledModel, label_channels

__all__ = ["ChannelSubset", "Groups", "LabelledModel", "label_channels"]
