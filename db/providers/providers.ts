import { sql } from 'drizzle-orm';
import { type Database, insertAll, run, transaction } from '../client.ts';
import { providerEndpoints, providerLocations, providerOtherNames, providers } from '../schema.ts';
import { providerKeys } from './keys.ts';

// Rows from the NPI Registry, for NPIs that are missing in NPPES imports. Imports have priority,
// and their rows are never changed here.

type Row = typeof providers.$inferSelect;

/** An active NPI from the registry, in NPPES terms. Empty fields are null. */
export interface RegistryProvider
  extends Readonly<
    Pick<
      Row,
      | 'npi'
      | 'lastName'
      | 'firstName'
      | 'middleName'
      | 'nameSuffix'
      | 'credential'
      | 'otherLastName'
      | 'otherFirstName'
      | 'organizationName'
      | 'parentName'
    >
  > {
  readonly entityType: 1 | 2;
  readonly practice: RegistryLocation | null;
  readonly endpoints: readonly RegistryEndpoint[];
  /** Only for organizations. */
  readonly otherNames: readonly { readonly name: string; readonly typeCode: string }[];
  readonly locations: readonly RegistryLocation[];
}

/** A practice location. Postal codes have five or nine digits. */
export type RegistryLocation = Readonly<
  Record<'line1' | 'line2' | 'city' | 'state' | 'postalCode' | 'phone', string | null>
>;

export type RegistryEndpoint = Omit<typeof providerEndpoints.$inferSelect, 'npi' | 'importNumber'>;

/**
 * Lists those of the NPIs to look up in the registry: no import has them, and the last registry
 * lookup is at least a day old (the etiquette for public clients of the registry). An older row
 * stays in use until a newer response arrives.
 */
export async function listRegistryDue(db: Database, npis: readonly string[]): Promise<string[]> {
  const rows = await run<{ npi: string }>(db)`
    select distinct asked.npi from unnest(${sql.param(npis)}::text[]) asked(npi)
     where not exists (
       select from providers p where p.npi = asked.npi
          and (p.origin = 'nppes' or p.imported_at > clock_timestamp() - interval '24 hours'))`;
  return rows.map(({ npi }) => npi);
}

/**
 * Stores the registry's response for an NPI and replaces the previous one. Changes nothing if an
 * import has the NPI, or if a concurrent call was first.
 * @param provider null if the registry has no active provider: then the NPI is stored as
 * deactivated today, without other data. This row blocks lookups for a day. Then the registry is
 * asked again, because an NPI may be new or reactivated.
 */
export async function storeRegistryAnswer(
  db: Database,
  npi: string,
  provider: RegistryProvider | null,
): Promise<void> {
  const found: Partial<RegistryProvider> = provider ?? {};
  const { practice, endpoints = [], otherNames = [], locations = [], ...facts } = found;
  const practiceColumns = practice ? practiceOf(practice) : {};
  const deactivatedOn = provider ? null : sql`current_date`;
  // An import skips rows with an equal hash. The hash of a registry row never matches, so that an
  // import always replaces the row.
  const marks = { npi, deactivatedOn, origin: 'registry', rowHash: 0 } as const;
  const details = [
    [providerEndpoints, endpoints],
    [providerOtherNames, otherNames],
    [providerLocations, locations.map(locationRow)],
  ] as const;
  await transaction(db, async (tx) => {
    await tx.delete(providers).where(sql`npi = ${npi} and origin = 'registry'`);
    const written = await tx
      .insert(providers)
      .values({ ...facts, ...practiceColumns, ...marks })
      .onConflictDoNothing()
      .returning({ npi: providers.npi });
    if (written.length === 0) return;
    for (const [table, rows] of details) {
      // Details that are missing in the new response are deleted. Among duplicates the first one
      // counts.
      await tx.delete(table).where(sql`npi = ${npi}`);
      if (rows.length === 0) continue;
      const insert = insertAll(table, rows, { npi, importNumber: null });
      await tx.execute(sql`${insert} on conflict do nothing`);
    }
  });
}

function practiceOf(practice: RegistryLocation) {
  return {
    practiceLine1: practice.line1,
    practiceLine2: practice.line2,
    practiceCity: practice.city,
    practiceState: practice.state,
    practicePostalCode: practice.postalCode,
    practicePhone: practice.phone,
    ...providerKeys(practice),
  };
}

/** The columns of an address are part of the primary key, so they are empty rather than null. */
function locationRow(location: RegistryLocation) {
  const part = (name: keyof RegistryLocation) => location[name] ?? '';
  return {
    line1: part('line1'),
    line2: part('line2'),
    city: part('city'),
    state: part('state'),
    postalCode: part('postalCode'),
    phone: location.phone,
    ...providerKeys(location),
  };
}
