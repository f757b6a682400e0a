-- Where a turn begins to read its output box (protocol §7.3): at the first card that the box's latest cut has kept. A row per box that
-- was cut. A worker of the version before knows no cuts and reads the box whole.
CREATE TABLE state.memory_cuts (
    box_id      uuid PRIMARY KEY REFERENCES public.boxes (box_id) ON DELETE CASCADE,
    project_id  text NOT NULL,
    position    bigint NOT NULL,
    cut_card_id text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
COMMENT ON COLUMN state.memory_cuts.position IS 'of the first card that is kept';
COMMENT ON COLUMN state.memory_cuts.cut_card_id IS 'the memory.cut card in the box, which names the card that is kept';
