import rows from '../../../activities/magic-npis.json' with { type: 'json' };
import type { VendorId } from '../../../activities/vendors/catalogue.ts';

// What the magic NPIs show: data alone, in one table with what the sandbox makes of them. Who they are follows in people.ts, what a vendor makes of it in knowledge.ts.

/** What one vendor knows of one person, in a word: what it has, or how it is with its answer. */
export const KNOWN = [
  'found', // A work address.
  'both',
  'personal',
  'direct',
  'somebody_else',
  'nobody',
  'slow', // The vendor takes a while.
  'limited', // The first question meets the vendor's rate limit, the next one is answered.
  'failing',
  'hanging',
  'optedout', // The person asked the vendor to stop processing.
  'catchall',
  'unknown', // The vendor could not find out whether the mailbox exists.
] as const;
export type Known = (typeof KNOWN)[number];
/** What is special to some of them. */
export type ByKnown<T> = Readonly<Partial<Record<Known, T>>>;

/** The magic NPI of an organization, the last practice of the sample. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

/** Who a magic NPI is, where they work, and what each vendor knows (those not named: nobody). */
interface Row {
  readonly name: string;
  readonly practice: string;
  readonly knows: Readonly<Partial<Record<VendorId, Known>>>;
}

/** Without those that the sandbox alone knows. */
export const MAGIC = new Map(rows.flatMap(({ npi, ...row }) => ('name' in row ? [[npi, row as Row]] : [])));
/** In the sample of NPPES, and deactivated there. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];
/** Who must not be looked up: the local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];

/** What the local stack puts into its directory before it starts; when each was validated in milliseconds before now. */
export const STORED_EMAILS = [
  { npi: '2000000051', email: 'avery.lindqvist@harborfamilymedicine-sim.com', validatedAgoMs: 0 },
  { npi: '2000000069', email: 'noor.castellano@lakesidepediatrics-sim.com', validatedAgoMs: 40 * 86_400_000 },
  { npi: '2000000077', email: 'tomas.ferreira@closedpractice-sim.com', validatedAgoMs: 40 * 86_400_000 },
].map((stored) => ({ ...stored, type: 'professional' as const }));
