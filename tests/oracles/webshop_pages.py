"""A reference implementation of WebShop's published text environment: a document per page, read with Beautiful Soup.

Source: the behaviour of princeton-nlp/WebShop, ``web_agent_site/envs/web_agent_text_env.py``, ``engine/engine.py`` and
the elements of its templates. The documents are ours, with the same texts in the same kinds of elements. Imports
nothing from this project; search, prices and reward are passed in.

Where the published environment stops with an exception, so does :meth:`Original.step`, before it changes anything.

Two switches reproduce the documented differences: without ``visited``, products seen before are not marked; with
``truthful``, exactly the chosen option is marked as clicked.
"""

import json
import re

from bs4 import BeautifulSoup
from bs4.element import Comment
from jinja2 import Environment

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
PARTS = ("description", "features", "reviews", "attributes")

_SHELL = """<!doctype html>
<html>
  <head>
    <title>a title that no agent sees</title>
  </head>
  <body>
    {}
  </body>
  <script>let options = {{{{ options | tojson }}}};</script>
</html>"""
_TOP = """
    <!-- a comment that no agent sees -->
    <div><h4>Instruction:<br>{{ instruction }}</h4></div>
    <form><button class="btn">Back to Search</button></form>
"""
_BACK = """
    <form><button class="btn">&lt; Prev</button></form>
"""
_TEMPLATES = {
    "index": """
    <div><h2>WebShop</h2></div>
    <div><h4>Instruction: <br>{{ instruction }}</h4></div>
    <input id="search_input" type="text">
    <button class="btn"><i></i>Search</button>
""",
    "results": _TOP
    + """
    <h3>Page {{ page }} (Total results: {{ total }})</h3>
    {% if page > 1 %}
    <form><button class="btn">&lt; Prev</button></form>
    {% endif %}
    <form><button class="btn">Next &gt;</button></form>
    {% for item in products %}
    <div>
      <h4><a class="product-link" href="#">{{ item.asin }}</a></h4>
      <h4>{{ item.Title }}</h4>
      <div>
        <h5>{{ item.Price }}</h5>
        <!--
          <h5>{{ item.category }}</h5>
        -->
      </div>
    </div>
    {% endfor %}
""",
    "item": _TOP
    + _BACK
    + """
    {% for name, values in item.options.items() %}
    <h4>{{ name }}</h4>
    <div>
      {% for value in values %}
      <input type="radio" name="{{ name }}" value="{{ value }}">
      <label>{{ value }}</label>
      {% endfor %}
    </div>
    {% endfor %}
    <h2>{{ item.Title }}</h2>
    <h4>Price: {{ item.Price }}</h4>
    <h4>Rating: N.A.</h4>
    <form><button class="btn">Description</button></form>
    <form><button class="btn">Features</button></form>
    <form><button class="btn">Reviews</button></form>
    {% if show_attributes %}
    <form><button class="btn">Attributes</button></form>
    {% endif %}
    <form><button class="btn purchase">Buy Now</button></form>
""",
    "description": _TOP + _BACK + "<p>{{ item.Description }}</p>",
    "features": _TOP
    + _BACK
    + """
    <ul>
      {% for bullet in item.BulletPoints %}
      <li><p> {{ bullet }}</p></li>
      {% endfor %}
    </ul>
""",
    "reviews": _TOP + _BACK,
    "attributes": _TOP
    + _BACK
    + """
    <ul>
      {% for attribute in item.Attributes %}
      <li><p> {{ attribute }}</p></li>
      {% endfor %}
    </ul>
    <h5>{{ item.category }}</h5>
    <h5>{{ item.query }}</h5>
    <h5>{{ item.product_category }}</h5>
""",
    "done": """
    <h1>Thank you for shopping with us!</h1>
    <h3>Your code: </h3>
    <p><pre>{{ None }}</pre> (Paste it in your MTurk interface.)</p>
    <h2>Purchased</h2>
    <h4>asin<pre>{{ asin }}</pre></h4>
    <h4>options<pre>{{ options | tojson }}</pre></h4>
    {% for label in ("attrs", "category", "query", "product category") %}
    <h4>{{ label }}<pre>{{ None }}</pre></h4>
    {% endfor %}
    <h2>Target</h2>
    {% for label in ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category",
                     "query") %}
    <h4>{{ label }}<pre></pre></h4>
    {% endfor %}
    <h4>Goal <div><pre>{{ None }}</pre></div></h4>
    <h2>Reward</h2>
    <h3>Your score (min 0.0, max 1.0)<pre>{{ reward }}</pre></h3>
    <h4>Reward Details <div><pre>{{ None }}</pre></div></h4>
""",
}
JINJA = Environment(autoescape=True)
_DOCUMENTS = {name: JINJA.from_string(_SHELL.format(body)) for name, body in _TEMPLATES.items()}


def product_of(row, attributes):
    """A row of the product file in the published environment's format."""
    options = {}
    for name, contents in (row["customization_options"] or {}).items():
        if contents is not None:
            options[name.lower()] = [c["value"].strip().replace("/", " | ").lower() for c in contents]
    prices = [float(re.sub(r"[^\d.]", "", segment)) for segment in (row["pricing"] or "$100.0").split("$")[1:]][:2]
    small = row["small_description"]
    return {
        "asin": row["asin"],
        "category": row["category"],
        "query": row["query"].lower().strip(),
        "product_category": row["product_category"],
        "Title": row["name"],
        "Description": row["full_description"],
        "BulletPoints": small if isinstance(small, list) else [small],
        "Price": " to ".join(f"${price}" for price in prices),
        "options": options,
        "Attributes": attributes.get(row["asin"], {}).get("attributes", ["DUMMY_ATTR"]),
    }


def read_action(action):
    match = re.match(r"(.+)\[(.+)\]", action)
    return match.groups() if match else (action, None)


class Stopped(Exception):
    """The published environment raises an exception."""


class Original:
    """One episode.

    search: query -> asins, best first.
    reward: (asin, options) -> score of buying the product.
    draw: list of products -> 50 of them; None where hidden searches and addresses play no part.
    """

    def __init__(
        self, products, instruction, search, reward, draw=None, *, show_attributes=False, visited=True, truthful=False
    ):
        self.draw = draw
        self.products = {product["asin"]: product for product in products}
        self.instruction = instruction
        self.found, self.score = search, reward
        self.show_attributes, self.visited, self.truthful = show_attributes, visited, truthful
        self.reward, self.done = 0.0, False
        self._start()

    def _start(self):
        self.page, self.query, self.asin = None, None, None
        self.seen, self.options = set(), {}
        self._show("index")

    def _show(self, kind, **known):
        """Make the document and the address of a page."""
        self.kind, self.url = kind, "index"
        if kind == "results":
            first = 10 * (self.page - 1)
            known = {"page": self.page, "total": len(self.results)}
            known["products"] = self.results[first : 10 * self.page]
            self.url = "http://shop/search_results/session"
        elif kind in ("item", *PARTS):
            known["item"] = self.products[self.asin]
        if kind == "item":
            tokens = "+".join(self.query.split(" "))
            self.url = f"http://shop/item_page/session/{self.asin}/{tokens}/{self.page}/{json.dumps(self.options)}"
        elif kind in PARTS:
            tokens = "+".join(self.query.split(" "))
            title = kind.capitalize()
            self.url = f"http://shop/item_sub_page/session/{self.asin}/{tokens}/{self.page}/{title}/{self.options}"
        self.html = _DOCUMENTS[kind].render(
            instruction=self.instruction, options=self.options, show_attributes=self.show_attributes, **known
        )
        self.soup = BeautifulSoup(self.html, "html.parser")
        self.clickable = self._clickable()

    def _clickable(self):
        """Label -> (class or option name, whether it is an option); later ones replace earlier ones."""
        labels = {}
        for element in self.soup.find_all(class_="btn") + self.soup.find_all(class_="product-link"):
            labels[element.get_text().lower()] = (element["class"][0], False)
        for element in self.soup.select('input[type="radio"]'):
            labels[element["value"]] = (element["name"], True)
        return labels

    def step(self, action):
        """Take the action and return its score; ``text``, ``rich`` and ``done`` describe the new page."""
        name, argument = read_action(action)
        argument = argument if argument is None else argument.lower()
        if name == "search" and argument:
            self._search(argument, 1)
        elif name == "click" and argument in self.clickable and argument != "search":
            self._click(argument)
        return self.reward

    def _products(self, query):
        """The products that a query finds: by the index, or for the hidden first words in another way."""
        everything, tokens = list(self.products.values()), query.split(" ")
        if self.draw is not None and tokens[0] == "<r>":
            if len(everything) < 50:
                raise Stopped("Sample larger than population")
            return self.draw(everything)
        if self.draw is not None and tokens[0] == "<a>":
            raise Stopped("'NoneType' object is not subscriptable")
        if self.draw is not None and tokens[0] == "<c>":
            if len(tokens) == 1:
                raise Stopped("list index out of range")
            return [product for product in everything if product["category"] == tokens[1].strip()]
        if self.draw is not None and tokens[0] == "<q>":
            return [product for product in everything if product["query"] == " ".join(tokens[1:]).strip()]
        return [self.products[asin] for asin in self.found(query)]

    @property
    def page_name(self):
        """What the published environment takes the page for."""
        if self.draw is None:
            return {"results": "search_results", "item": "item_page"}.get(self.kind, "item_sub_page")
        return next((name for name in ("search_results", "item_page", "item_sub_page") if name in self.url), "")

    def _search(self, query, page):
        self.results = self._products(query)
        self.query, self.page = query, page
        self.asin, self.options = None, {}
        self._show("results")

    def _click(self, label):
        sort, is_option = self.clickable[label]
        if label == BUY:
            self._require_product()
            self.reward, self.done = self.score(self.asin, self.options), True
            self._show("done", asin=self.asin, reward=self.reward)
        elif label == BACK:
            self._start()
        elif label == NEXT and self.page_name == "search_results":
            self._search(self.query, self.page + 1)
        elif label == PREVIOUS and self.page_name == "search_results":
            self._search(self.query, self.page - 1)
        elif label == PREVIOUS and self.page_name == "item_sub_page":
            self._show("item")
        elif label == PREVIOUS and self.page_name == "item_page":
            self._search(self.query, self.page)
        elif label in PARTS:
            self._require_product()
            self._show(label)
        else:
            if sort == "product-link":
                if label.upper() not in self.products:
                    raise Stopped(label)
                self.asin = label.upper()
                self.seen.add(self.asin)
            elif is_option:
                self.options[sort.lower()] = label
            self._show("item")

    def _require_product(self):
        if self.asin is None:
            raise Stopped(self.asin)

    def _visible(self):
        hidden = {"style", "script", "head", "title", "meta", "[document]"}
        for string in self.soup.find_all(string=True):
            if string.parent.name not in hidden and not isinstance(string, Comment) and string != "\n":
                yield string

    @property
    def text(self):
        return " [SEP] ".join(string.strip() for string in self._visible())

    @property
    def rich(self):
        output = ""
        for string in self._visible():
            parent = string.parent
            if parent.name == "button":
                line = f"[button] {string} [button_]"
            elif parent.name == "label":
                name = parent.find_previous("input")["name"]
                truly = self.options.get(name) == str(string)
                if truly if self.truthful else f'"{string}"' in self.url:
                    line = f"  [clicked button] {string} [clicked button_]"
                    output = f"You have clicked {string}.\n{output}"
                else:
                    line = f"  [button] {string} [button_]"
            elif parent.get("class") == ["product-link"]:
                mark = "clicked button" if self.visited and str(string) in self.seen else "button"
                line = f"\n[{mark}] {string} [{mark}_]"
            else:
                line = str(string)
            output += f"{line}\n"
        return output
