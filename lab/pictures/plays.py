"""The scripted models of the demo project: what its agents say and call, in words that one would read at work.

A play is a list of steps under the instruction that begins it. A step is a line, or several: one for each attempt. A
turn is recognized by its instruction; an instruction that begins no play gets an answer in one step, made of its own
words. Tokens are those that a model would count for a prompt of this size, and cost follows from them.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall, ScriptError
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice

Step = "Line | tuple[Line, ...]"


@dataclass(frozen=True, slots=True)
class Line:
    """What a model says in a step: text, calls, or an error."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()
    pause: float = 0.02
    """Seconds before each piece of the text and each call."""
    chunks: int = 12
    read: int = 0
    """Tokens of its prompt beside the usual ones."""
    error: str | None = None
    retryable: bool = True


SOAKED = "Order 48213: the customer writes that the parcel arrived soaked. Sort it out."
TORN = "Order 48377: dust jacket torn on a signed first edition, the customer sent two photographs."
INVOICE = "Pay what is due this week."
SHORTLIST = "Put together a shortlist of translated fiction for the spring table."
PAGE = "Publish the page for the reading on 4 December."
REPORT = "Write the November report for the buyers' meeting."
LABELS = "Print the labels for tonight's collection."
PRINTERS = "Compare printers for the spring catalogue: 48 pages, 12,000 copies."
QUOTES = "Ask three printers for a quote for posters."
PAPER = "Find out who can deliver recycled 115 g paper before February."
GREET, STATUS, CHANGE = (
    "Hello! I ordered “The Wall” on Monday. When will it be here?",
    "Can I still have it sent to my office instead?",
    "Perfect. And do you have the new Annie Ernaux?",
)
DAYBOOK = "Book yesterday's takings."
STOCK = "How many copies of “Kairos” are left, and where?"

_REPORT = """\
## November in one page

Net sales are **up 6.4 %** on last November. Fiction carries the month; children's books are flat, and
cookery is early this year.

| section | net sales | against 2025 | returns |
|---|---:|---:|---:|
| Fiction | 41,280 | +11.2 % | 3.1 % |
| Children's | 28,910 | +0.3 % | 2.4 % |
| Non-fiction | 22,475 | +4.8 % | 4.0 % |
| Cookery | 9,130 | +19.5 % | 1.2 % |

### What moved

1. The prize list: four of the ten best sellers were on it, and two of them ran out on the second weekend.
2. Signed copies sell out within a day. We should ask for **twice** as many.
3. Returns of non-fiction come from one publisher: the spines of its autumn paperbacks crack.

### What I would decide on Thursday

- Reorder *Kairos* and *The Wall*, 60 copies each, before the 28th.
- Put cookery on the table by the door a week earlier.
- Ask the publisher of the cracked spines for a credit note instead of taking another delivery.

The figures are from the ledger of the tills, closed on 22 November. Web orders of the 22nd are not in it yet,
which moves the totals by less than half a percent.
"""


def _fork(*tasks: tuple[str, str, str], **fields: object) -> tuple[str, JsonObject]:
    children: list[JsonObject] = [
        {"target_strategy": "new", "target_ref": profile, "instruction": instruction, "label": label}
        for profile, instruction, label in tasks
    ]
    arguments: dict[str, object] = {"tasks": children, "join": "all", **fields}
    return "fork_join", arguments  # pyright: ignore[reportReturnType] -- JSON, built of JSON


POSTERS: Mapping[str, float] = {"Adler": 0.03, "Boll": 0.06, "Casar": 0.02}
"""Printers of posters, and how long a reader pauses over each."""


def _poster(printer: str) -> str:
    return f"Posters at {printer}: what do fifty cost?"


def _child(printer: str) -> str:
    return f"Printer {printer}: price, paper, delivery."


PLAYS: Mapping[str, tuple[Line | tuple[Line, ...], ...]] = {
    SOAKED: (
        Line(
            "I look up the order, and what our handbook says about damage in transit.",
            (
                ("order_lookup", {"order": "48213"}),
                ("search_handbook", {"query": "damaged in transit", "most": 3}),
            ),
        ),
        (
            Line("The order was", error="rate_limited", chunks=1),
            Line(
                "It was handed over dry and signed for wet, so the carrier pays. The handbook says refund first, claim "
                "later. A refund of this size needs somebody's approval.",
                (
                    (
                        "refund",
                        {"order": "48213", "amount": 64.90, "reason": "parcel arrived soaked", "tell_customer": True},
                    ),
                ),
                pause=0.04,
            ),
        ),
        Line(
            "The customer is refunded, and the carrier has our claim.\n\n"
            "| | |\n|---|---|\n| Refund | **64.90 €**, two to three days |\n"
            "| Claim | DX-2207, answer due 1 December |\n"
            "| Replacement | reserved until Friday, *The Wall* and *Kairos* |\n\n"
            "I wrote to the customer:\n\n> We are sorry about the state of your parcel. Your money is on its way. If "
            "you still want the books, answer this mail, and we send them again at no cost.",
            pause=0.03,
            chunks=30,
        ),
    ),
    TORN: (
        Line("First the order.", (("order_lookup", {"order": "48377"}),)),
        Line(
            "It is the signed first edition. There is no second copy to send, so I would refund half and let the "
            "customer keep it.",
            (
                (
                    "refund",
                    {
                        "order": "48377",
                        "amount": 212.40,
                        "reason": "dust jacket torn; customer keeps the book",
                        "tell_customer": True,
                    },
                ),
            ),
        ),
        Line("The customer keeps the book and has half of the price back."),
    ),
    INVOICE: (
        Line(
            "One invoice is due before Friday. It matches the delivery note.",
            (
                (
                    "pay_invoice",
                    {
                        "supplier": "Papier & Söhne",
                        "invoice": "PS-2291",
                        "amount": 4180.00,
                        "currency": "EUR",
                        "due": "2026-11-27",
                        "lines": [
                            {"text": "Catalogue paper, 115 g, 2.4 t", "net": 3310.00},
                            {"text": "Delivery and unloading", "net": 202.61},
                        ],
                        "note": "Delivery note 8814, checked by Jonas",
                    },
                ),
            ),
        ),
        Line("Paid. Nothing else is due this week."),
    ),
    SHORTLIST: (
        Line(
            "Two lists are possible, and they make different tables.",
            (
                (
                    "ask_human",
                    {
                        "question": "Shall the spring table lead with the prize list, or with small presses?",
                        "choices": ["prize list", "small presses", "half and half"],
                    },
                ),
            ),
        ),
        Line("Then I order by that, and send the list to the buyers."),
    ),
    PAGE: (
        Line(
            "The page is written. It goes to everybody, so please read it first.",
            (
                (
                    "publish_page",
                    {
                        "path": "/events/2026-12-04-reading",
                        "title": "Reading: Jenny Erpenbeck, “Kairos”",
                        "body": "Friday, 4 December, 19:30, upstairs. Doors open at 19:00. Tickets are 12 €, 8 € "
                        "for students, and can be kept at the till until Thursday.",
                        "visible": "public",
                    },
                ),
            ),
        ),
        Line("The page is public, and the newsletter links to it."),
    ),
    REPORT: (
        Line(
            "I fetch the takings, and last year's for comparison.",
            (("sales_by_section", {"month": "2026-11"}), ("sales_by_section", {"month": "2025-11"})),
        ),
        Line(_REPORT, pause=0.35, chunks=260, read=6_200),
    ),
    LABELS: (
        Line(
            "Thirty-one parcels are packed. I send their labels to the printer by the door.",
            (("print_labels", {"printer": "door", "orders": [48401, 48402, 48406, 48411], "copies": 1}),),
        ),
        Line("They are printed."),
    ),
    PRINTERS: (
        Line(
            "Four printers can do this. I have each looked at by a reader, at the same time.",
            (
                _fork(
                    ("reader", _child("Hafner"), "Hafner"),
                    ("reader", _child("Lund & Co"), "Lund & Co"),
                    ("reader", _child("Nordia"), "Nordia"),
                    ("scout", "Printers east of here: look at two.", "further east"),
                ),
            ),
            pause=0.05,
        ),
        Line(
            "**Take Hafner.** It is 4 % dearer than the cheapest and delivers eleven days earlier, which is what the "
            "spring table needs.\n\n"
            "| printer | 12,000 copies | delivery | remark |\n|---|---:|---|---|\n"
            "| **Hafner** | 9,480 € | 22 January | recycled paper in stock |\n"
            "| Lund & Co | 9,110 € | 2 February | no proof included |\n"
            "| Morava | 8,920 € | 12 February | freight not included |\n\n"
            "*Nordia did not answer; I would not wait for it.*",
            pause=0.03,
            chunks=40,
            read=3_400,
        ),
    ),
    _child("Hafner"): (
        Line("I read their price list.", (("web_search", {"query": "Hafner Druck catalogue 48 pages price"}),)),
        Line("Hafner: 9,480 €, 115 g recycled in stock, delivery on 22 January.", pause=0.05, read=2_100),
    ),
    _child("Lund & Co"): (
        Line("I read their price list.", (("web_search", {"query": "Lund & Co catalogue printing price"}),), pause=0.1),
        Line("Lund & Co: 9,110 €, delivery on 2 February, a proof costs extra.", pause=0.12, read=1_750),
    ),
    _child("Nordia"): (Line("Nordia's site", pause=0.25, error="provider_unavailable", retryable=False, chunks=1),),
    "Printers east of here: look at two.": (
        Line(
            "Two are worth it.",
            (_fork(("reader", _child("Morava"), "Morava"), ("reader", _child("Tatra"), "Tatra"), join="any"),),
        ),
        Line("Morava: 8,920 €, delivery on 12 February. Tatra was slower to answer.", read=600),
    ),
    _child("Morava"): (Line("Morava: 8,920 €, delivery on 12 February, freight not included.", pause=0.06, read=900),),
    _child("Tatra"): (Line("Tatra: I am still looking for their list.", pause=1.5, read=900),),
    QUOTES: (
        Line(
            "I have three readers look at once, and check what the last posters sold.",
            (
                ("sales_by_section", {"month": "2026-11"}),
                _fork(*(("reader", _poster(name), name) for name in POSTERS)),
            ),
            pause=0.04,
        ),
        Line("Adler is the cheapest for fifty posters, and has the paper.", pause=0.05, read=1_200),
    ),
    **{
        _poster(name): (
            Line("I look for their price list.", (("web_search", {"query": f"{name} posters"}),), pause=pause),
            Line(f"{name}: fifty posters in two days.", pause=pause, read=800),
        )
        for name, pause in POSTERS.items()
    },
    PAPER: (
        Line(
            "I ask five mills at once.",
            (
                _fork(
                    *(
                        ("reader", f"Mill {name}: recycled 115 g before February?", name)
                        for name in ("Altmühl", "Brenta", "Cordoba", "Drammen", "Elbe")
                    )
                ),
            ),
        ),
        Line("Altmühl and Elbe can deliver; Altmühl is cheaper.", read=1_800),
    ),
    "Mill Altmühl: recycled 115 g before February?": (Line("Altmühl: yes, 6 t on 15 January.", read=700),),
    "Mill Brenta: recycled 115 g before February?": (
        Line("Brenta", error="context_too_long", retryable=False, chunks=1),
    ),
    "Mill Cordoba: recycled 115 g before February?": (
        Line("I look for their stock list.", (("web_search", {"query": "Papelera Cordoba stock"}),)),
        Line("Cordoba lists 115 g as out of stock; I check the two depots one by one. " * 6, pause=2.4, chunks=40),
    ),
    "Mill Drammen: recycled 115 g before February?": (
        Line("Their agent answers by mail only, so I go through the archive of offers. " * 6, pause=2.6, chunks=40),
    ),
    "Mill Elbe: recycled 115 g before February?": (Line("Elbe: yes, 4 t on 20 January.", pause=0.1, read=650),),
    GREET: (
        Line("I look at your order.", (("order_lookup", {"order": "48392"}),)),
        Line(
            "Good morning! *The Wall* left us on Tuesday afternoon. The carrier says **tomorrow, between 10 and 14 "
            "o'clock**.\n\nYou can follow it under number `DX 7719 3302 18`.",
            pause=0.02,
            chunks=20,
        ),
    ),
    STATUS: (
        Line(
            "Yes, until six o'clock tonight. I need the address of your office; or say *pick up*, and it goes to the "
            "parcel shop at the station.",
        ),
    ),
    CHANGE: (
        Line("I look on the shelf.", (("stock", {"title": "Annie Ernaux"}),)),
        Line(
            "We have it:\n\n- **The Other Girl**, paperback, 14.00 €: three copies on the table by the door\n"
            "- **Exteriors**, hardback, 22.00 €: one copy, signed\n\nShall I put one aside for you?",
            chunks=20,
        ),
    ),
    STOCK: (
        Line("", (("stock", {"title": "Kairos"}),)),
        Line("Seven: four on the prize table, two in fiction under E, one in the window."),
    ),
    DAYBOOK: (Line("Booked: 5,214.30 € in 187 receipts; the till agrees with the ledger."),),
}
"""Plays by their instruction."""

PRICES: Mapping[str, ModelPrice] = {
    "scripted/large": ModelPrice(input_per_million=Decimal(3), output_per_million=Decimal(15)),
    "scripted/small": ModelPrice(input_per_million=Decimal("0.25"), output_per_million=Decimal("1.25")),
}
"""US dollars per million tokens."""
_CHARACTERS_A_TOKEN = 4
_PROMPT_TOKENS = 1_450
_STEP_TOKENS = 380
_MICRO = 1_000_000
_FAILED_OF = 23
_SLOW_SECONDS = 0.3


def at_pace(pace: float) -> dict[str, Script]:
    """The models, whose short pauses take `pace` times as long; what streams for minutes still does."""

    def answer(request: ModelRequest) -> ScriptLine:
        line = _answer(request)
        slow = line.delay_seconds >= _SLOW_SECONDS
        return line if slow else line.model_copy(update={"delay_seconds": line.delay_seconds * pace})

    return {"large": answer, "small": answer}


def _answer(request: ModelRequest) -> ScriptLine:
    """The line of the play that was asked for last, for this step and attempt."""
    messages = [message.content for message in request.messages if message.role == "user"]
    instruction = next((m for m in reversed(messages) if m in PLAYS), None)
    if instruction is None:
        return _everyday(request, messages[-1] if messages else "")
    steps = PLAYS[instruction]
    step = steps[min(request.step, len(steps)) - 1]
    tried = (step,) if isinstance(step, Line) else step
    return _line(request, tried[min(request.attempt, len(tried)) - 1])


def _line(request: ModelRequest, line: Line) -> ScriptLine:
    calls = tuple(ScriptCall(name=name, arguments=arguments) for name, arguments in line.calls)
    characters = len(line.text) + sum(len(str(arguments)) for _, arguments in line.calls)
    error = (
        None if line.error is None else ScriptError(code=line.error, retryable=line.retryable, retry_after_seconds=0.4)
    )
    usage, cost = _usage(request, characters // _CHARACTERS_A_TOKEN, line.read)
    return ScriptLine(
        text=line.text,
        tool_calls=calls,
        chunks=max(1, min(len(line.text), line.chunks)),
        delay_seconds=line.pause,
        usage=usage,
        response_cost=cost,
        error=error,
    )


def _everyday(request: ModelRequest, instruction: str) -> ScriptLine:
    """An answer in one step; its size, and whether it fails, follow from the instruction's text."""
    drawn = zlib.crc32(instruction.encode())
    if drawn % _FAILED_OF == 0:
        refused = ScriptError(code="content_filtered", message="the provider refused the request", retryable=False)
        return ScriptLine(error=refused)
    usage, cost = _usage(request, 160 + drawn % 700, drawn % 5_000)
    topic = instruction.rstrip(".").partition(": ")[2] or instruction
    return ScriptLine(text=f"Done: {topic}. The text is in the catalogue.", usage=usage, response_cost=cost)


def _usage(request: ModelRequest, answered: int, read: int) -> tuple[JsonObject, float]:
    """Tokens of a request and what they cost in US dollars."""
    prompt = _PROMPT_TOKENS + _STEP_TOKENS * (request.step - 1) + read
    counted: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
    }
    price = PRICES.get(request.config.model)
    return counted, 0.0 if price is None else price.cost(prompt, answered) / _MICRO


SCRIPTS: dict[str, Script] = at_pace(1.0)
