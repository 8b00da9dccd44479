"""A support desk: the model opens a ticket over HTTP, at most once per complaint, however often the call is tried.

Worker:    MAKEGOOD_AGENTS=support makegood worker --embedded
Producer:  MAKEGOOD_REDIS_URL=<the URL that the worker names> python support.py "The lamp is broken."
"""

import os
import sys

from makegood import Agent, Client, RecordedCall, Timeouts, ToolContext, ToolError, tool

SHOP = os.environ.get("SHOP_URL", "http://localhost:8000")


@tool(effect="idempotent", identity=("customer", "title"), timeout=8)
async def create_ticket(ctx: ToolContext, customer: str, title: str) -> dict[str, str]:
    """Open a ticket in the shop's support system."""
    # ctx.http sends an Idempotency-Key that is the same in every try and every attempt of this call.
    answer = await ctx.http.post(f"{SHOP}/tickets", json={"customer": customer, "title": title})
    if answer.status_code == 404:
        raise ToolError(f"There is no customer {customer!r}.")  # told to the model, not tried again
    answer.raise_for_status()  # a 5xx or a lost answer is tried again, under the same key
    return answer.json()


@create_ticket.compensate
async def withdraw_ticket(ctx: ToolContext, call: RecordedCall) -> None:
    """Called when the run fails. To let the ticket stand, give the agent on_failure="keep" instead."""
    answer = await ctx.http.delete(f"{SHOP}/tickets/{call.response['id']}")
    if answer.status_code != 404:  # 404: withdrawn already, in an earlier try
        answer.raise_for_status()


support = Agent(
    name="support",
    model="openai/gpt-5-mini",
    system="You are the support desk of a shop. Open a ticket for every complaint, then tell the customer its number.",
    tools=[create_ticket],
    timeouts=Timeouts(step=30, run=120),
)

if __name__ == "__main__":
    complaint = sys.argv[1]
    with Client() as client:
        run = client.enqueue("support", {"text": complaint}, key=f"mail:{complaint}")
        result = run.wait(timeout=130)
        print(result.output if result.error is None else f"{result.state}: {result.error.message}")
