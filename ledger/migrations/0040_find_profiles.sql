-- The versions of a profile: each put makes a card. Names are cut, since a v1r4 writer bounds none, and an index holds no long ones.
CREATE INDEX cards_profiles ON public.cards (tenant_id COLLATE "C", (left(lower(content #>> '{data,name}'), 128)), created_at)
    WHERE metadata ->> 'type' = 'sys.profile';
