import type { PublicFacts } from '../../db/requests/check.ts';
import { inert } from '../files/result-rows.ts';

// The public facts next to an NPI in pages and files of the console, so that a visitor sees whose
// email it is. The envelope of the API does not have them.

const FACTS = ['name', 'credential', 'city', 'state', 'specialty'] as const;

/** The columns of a file with the facts about an NPI. */
export const FACT_COLUMNS = FACTS.map((fact) => `npi_${fact}` as const);

type FactColumn = (typeof FACT_COLUMNS)[number];

/** Returns the facts about an NPI by the names of their columns. */
export function factsByColumn(facts: PublicFacts | undefined) {
  const entries = FACTS.map((fact) => [`npi_${fact}`, facts?.[fact] ?? null]);
  return Object.fromEntries(entries) as Record<FactColumn, string | null>;
}

/** Returns the cells of the facts about an NPI. Facts that we don't know are empty. */
export function factCells(facts: PublicFacts | undefined): readonly string[] {
  return FACTS.map((fact) => inert(facts?.[fact] ?? ''));
}
