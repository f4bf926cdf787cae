import states from './us-states.json' with { type: 'json' };

/**
 * The states, the District of Columbia and the territories that have NPIs, by postal code and by
 * name.
 */
const CODES: ReadonlyMap<string, string> = new Map(
  Object.entries(states).flatMap(([code, name]) => [
    [code.toLowerCase(), code] as const,
    [name, code] as const,
  ]),
);

/**
 * The postal code of a US state from its name or code in any case.
 * @param country two-letter code as the vendor gives it; null is taken for the US, where every NPI
 * is
 * @returns null if it isn't a state, or is one of another country: `CA` may be Canada's and
 * `Victoria` Australia's
 */
export function usState(state: string | null, country: string | null): string | null {
  if (country !== null && country.toUpperCase() !== 'US') return null;
  return CODES.get(state?.toLowerCase() ?? '') ?? null;
}
