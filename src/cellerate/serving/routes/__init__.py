"""Routes: the handlers of each protocol, and the table of all of them, from which the OpenAPI document follows.

A route is a handler in the module of its protocol and a row in `OPERATIONS`.
"""

from cellerate.serving.routes.openapi import document
from cellerate.serving.routes.operations import OPERATIONS
from cellerate.serving.routes.pages import page_routes

__all__ = [
    "OPERATIONS",
    "document",
    "page_routes",
]
