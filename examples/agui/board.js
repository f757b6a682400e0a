// A page whose agent moves things on it: the page offers a tool, and runs its calls itself (AG-UI's frontend tools).

import { own } from "./chat.js";

const things = [...document.getElementById("board").children].map(({ id }) => id);
const PLACES = ["left", "middle", "right"];

own.tools = [
  {
    name: "move",
    description: "Move a thing on the page to a place.",
    parameters: {
      type: "object",
      properties: { thing: { enum: things }, place: { enum: PLACES } },
      required: ["thing", "place"],
      additionalProperties: false,
    },
  },
];

own.run.move = ({ thing, place }) => {
  const moved = document.getElementById(thing);
  if (moved.className === place) throw new Error(`the ${thing} is there already`);
  moved.className = place;
  return { thing, place };
};
