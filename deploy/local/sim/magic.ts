import rows from '../../../activities/magic-npis.json' with { type: 'json' };
import type { VendorId } from '../../../activities/vendors/catalogue.ts';

// The magic NPIs of the simulated vendors. They come from magic-npis.json, which also lists their
// results in the sandbox. From them, people.ts derives the people, and knowledge.ts derives the
// responses of the vendors.

/**
 * What a vendor knows about a person: the kind of address that it has, or the way in which it
 * responds.
 */
export const KNOWN = [
  'found', // The vendor has a professional address.
  'both', // It has a professional and a personal address.
  'personal', // It has only a personal address.
  'direct', // It has only a Direct address.
  'somebody_else', // It returns the address of another person.
  'nobody', // It has no result.
  'slow', // It has a result, but only after several polls.
  'limited', // It rejects the first request because of its rate limit. The next one succeeds.
  'failing', // It responds with an error.
  'hanging', // It never responds.
  'optedout', // The person asked the vendor not to process their data.
  'catchall', // It has an address at a catch-all domain.
  'unknown', // It has an address, but could not verify the mailbox.
] as const;
export type Known = (typeof KNOWN)[number];
/** A value for some of the kinds in `KNOWN`. */
export type ByKnown<T> = Readonly<Partial<Record<Known, T>>>;

/** The magic NPI that belongs to an organization, namely the last practice of the sample. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

/**
 * The person of a magic NPI, their practice, and what each vendor knows. A vendor that is not
 * listed has no result.
 */
interface Row {
  readonly name: string;
  readonly practice: string;
  readonly knows: Readonly<Partial<Record<VendorId, Known>>>;
}

/** The people of magic NPIs by NPI. Magic NPIs that only exist in the sandbox are left out. */
export const MAGIC: ReadonlyMap<string, Row> = new Map(
  rows.filter((row) => 'name' in row).map((row) => [row.npi, row as Row]),
);
/** NPIs that are deactivated in the NPPES sample. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];
/** NPIs that must not be looked up. The local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];

interface StoredEmail {
  readonly npi: string;
  readonly email: string;
  readonly type: 'professional';
  /** The time since the address was validated. */
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
