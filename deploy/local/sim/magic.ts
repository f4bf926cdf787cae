import rows from '../../../activities/magic-npis.json' with { type: 'json' };
import type { VendorId } from '../../../activities/vendors/catalogue.ts';

// The magic NPIs, in one table with their results in the sandbox. people.ts derives the people, and
// knowledge.ts the responses of vendors.

/** A vendor's knowledge about a person: the kind of address, or the kind of response. */
export const KNOWN = [
  'found', // A work address.
  'both',
  'personal',
  'direct',
  'somebody_else',
  'nobody',
  'slow', // The vendor takes a while.
  'limited', // The first request exceeds the vendor's rate limit. The next one succeeds.
  'failing',
  'hanging',
  'optedout', // The person asked the vendor to stop processing.
  'catchall',
  'unknown', // The vendor could not find out whether the mailbox exists.
] as const;
export type Known = (typeof KNOWN)[number];
/** Values for some kinds of knowledge. */
export type ByKnown<T> = Readonly<Partial<Record<Known, T>>>;

/** The magic NPI of an organization, the last practice of the sample. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

/**
 * A magic person, their practice, and the knowledge of each vendor. A missing vendor has no result.
 */
interface Row {
  readonly name: string;
  readonly practice: string;
  readonly knows: Readonly<Partial<Record<VendorId, Known>>>;
}

/** Magic people by NPI, except those that only the sandbox knows. */
export const MAGIC: ReadonlyMap<string, Row> = new Map(
  rows.filter((row) => 'name' in row).map((row) => [row.npi, row as Row]),
);
/** Deactivated in the sample of NPPES. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];
/** NPIs that must not be looked up. The local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];

interface StoredEmail {
  readonly npi: string;
  readonly email: string;
  readonly type: 'professional';
  /** The age of the validation. */
  readonly validatedAgoMs: number;
}

const STALE_MS = 40 * 86_400_000;

/** Addresses that the local stack stores in its directory before it starts. */
export const STORED_EMAILS: readonly StoredEmail[] = [
  {
    npi: '2000000051',
    email: 'avery.lindqvist@harborfamilymedicine-sim.com',
    type: 'professional',
    validatedAgoMs: 0,
  },
  {
    npi: '2000000069',
    email: 'noor.castellano@lakesidepediatrics-sim.com',
    type: 'professional',
    validatedAgoMs: STALE_MS,
  },
  {
    npi: '2000000077',
    email: 'tomas.ferreira@closedpractice-sim.com',
    type: 'professional',
    validatedAgoMs: STALE_MS,
  },
];
