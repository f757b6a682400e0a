-- The cards of boxes, in order.
-- No foreign key to boxes: its row lock would rewrite the box at every append. guard_box_cards checks instead.
CREATE TABLE public.box_cards (
    box_id   uuid NOT NULL,
    position bigint NOT NULL CHECK (position > 0),
    card_id  text NOT NULL REFERENCES public.cards (card_id),
    PRIMARY KEY (box_id, position)
);

CREATE INDEX box_cards_card ON public.box_cards (card_id);
