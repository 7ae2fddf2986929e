"""Labels the channels of a model, to find those that can be removed together."""

from kerasmem.graph.channels.groups import Groups
from kerasmem.graph.channels.labelled_calls import ChannelSubset
from kerasmem.graph.channels.walk import LabelledModel, label_channels

__all__ = ["ChannelSubset", "Groups", "LabelledModel", "label_channels"]
