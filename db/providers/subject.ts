import { eq, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { providers } from '../schema.ts';
import type { EndpointKind } from '../words.ts';

// Who an NPI is, and who else is where it is: what NPPES or the NPI registry say, unjudged.

export interface EndpointFact {
  readonly kind: EndpointKind;
  /** As the file has it: an address, a URL, or neither. */
  readonly endpoint: string;
  readonly affiliationName: string | null;
}

/** An active organization (type 2) that shares a telephone or an address with a provider. */
export interface Neighbor {
  readonly npi: string;
  /** The legal business name. */
  readonly name: string | null;
  /** The names it does business under. */
  readonly otherNames: readonly string[];
  /** Those with an `@` in them. */
  readonly endpoints: readonly EndpointFact[];
}

/** Null if so many share it that being there says nothing: an answering service, a hospital's switchboard. */
export type Neighbors = readonly Neighbor[] | null;

/** A provider as the tables have it. Text is as NPPES writes it, capitals and stray characters included. */
export interface ProviderFacts extends Readonly<typeof providers.$inferSelect> {
  /** Why nobody is asked about it; null if it is an active individual for all that is known. */
  readonly refusal: Exclude<GateReason, 'suppressed'> | null;
  /** States of the practice locations beside the primary one. */
  readonly otherStates: readonly string[];
  readonly endpoints: readonly EndpointFact[];
  readonly atPhone: Neighbors;
  readonly atAddress: Neighbors;
}

/** Why nobody is asked about an NPI. */
export type GateReason = 'organization_npi' | 'deactivated' | 'suppressed';

/** More organizations than this at one telephone or address are a crowd. */
const NEIGHBORS_AT_MOST = 20;
/** So many other locations, of persons too, are looked at for one telephone or address. */
const LOCATIONS_AT_MOST = 200;
const ENDPOINTS_AT_MOST = 50;

/** What the registry did not know, or knew as out of service, counts for a day (see `storeRegistryAbsence`). */
const REFUSAL = sql<ProviderFacts['refusal']>`case
  when not is_inactive(providers.npi) then null
  when not providers.active then 'deactivated'
  else 'organization_npi' end`;

/**
 * The NPIs of a batch that are not to be looked up, and why, in one statement. An NPI that no table has passes.
 * @param npis 10 digits each
 * @throws {DatabaseError}
 */
export async function gate(db: Database, npis: readonly string[]): Promise<Map<string, GateReason>> {
  const rows = await query(db, (tx) =>
    tx.execute<{ npi: string; reason: GateReason }>(sql`
      select asked.npi, reason
        from unnest(${sql.param([...new Set(npis)])}::text[]) asked(npi)
        left join providers on providers.npi = asked.npi
        cross join lateral (
          select case when is_suppressed(asked.npi, null) then 'suppressed' else ${REFUSAL} end as reason
        ) judged
       where reason is not null`),
  );
  return new Map(rows.map(({ npi, reason }) => [npi, reason]));
}

/**
 * Everything on record that tells who a provider is and where they work. A few indexed reads, bounded however many
 * share a telephone or an address.
 * @returns null if neither NPPES nor the registry has the NPI
 * @throws {DatabaseError}
 */
export async function readProvider(db: Database, npi: string): Promise<ProviderFacts | null> {
  return await query(db, async (tx) => {
    const [row] = await tx
      .select({
        provider: providers,
        refusal: REFUSAL,
        otherStates: sql<string[]>`array(
          select distinct l.state from provider_locations l where l.npi = ${npi} limit ${LOCATIONS_AT_MOST})`,
      })
      .from(providers)
      .where(eq(providers.npi, npi));
    if (!row) return null;
    const { provider, refusal, otherStates } = row;
    const places = await readPlaces(tx, provider);
    const known = [...new Set([...(places.phone ?? []), ...(places.address ?? [])])];
    const endpoints = await readEndpoints(tx, npi, known);
    const names = await readOrganizationNames(tx, known);
    const neighbors = (npis: readonly string[] | null): Neighbors =>
      npis?.map((one) => ({
        npi: one,
        name: names.get(one)?.name ?? null,
        otherNames: names.get(one)?.otherNames ?? [],
        endpoints: endpoints.get(one) ?? [],
      })) ?? null;
    return {
      ...provider,
      refusal,
      otherStates,
      endpoints: endpoints.get(npi) ?? [],
      atPhone: neighbors(places.phone),
      atAddress: neighbors(places.address),
    };
  });
}

/** The organizations, in the order of their NPIs, at the telephone and at the address; null for a crowd. */
async function readPlaces(
  tx: Pick<Transaction, 'execute'>,
  { phoneKey, addressKey }: typeof providers.$inferSelect,
): Promise<{ phone: string[] | null; address: string[] | null }> {
  const at = (key: 'phone_key' | 'address_key', value: string | null) => sql`
    (select npi from providers
      where entity_type = 2 and active and ${sql.identifier(key)} = ${value}::text
      limit ${NEIGHBORS_AT_MOST + 1})
    union
    (select p.npi
       from (select l.npi from provider_locations l
              where l.${sql.identifier(key)} = ${value}::text limit ${LOCATIONS_AT_MOST}) l
       join providers p on p.npi = l.npi
      where p.entity_type = 2 and p.active
      limit ${NEIGHBORS_AT_MOST + 1})`;
  const rows = await tx.execute<{ place: 'phone' | 'address'; npi: string }>(sql`
    select 'phone' as place, npi from (${at('phone_key', phoneKey)}) a
    union all
    select 'address', npi from (${at('address_key', addressKey)}) a
    order by place, npi`);
  const found = (place: 'phone' | 'address') => {
    const npis = rows.filter((row) => row.place === place).map((row) => row.npi);
    return npis.length > NEIGHBORS_AT_MOST ? null : npis;
  };
  return { phone: found('phone'), address: found('address') };
}

/** All kinds of the provider's own, whose affiliations tell the employer; only what may be an address of the neighbors'. */
async function readEndpoints(
  tx: Pick<Transaction, 'execute'>,
  npi: string,
  neighbors: readonly string[],
): Promise<Map<string, EndpointFact[]>> {
  const rows = await tx.execute<EndpointRow>(sql`
    select e.npi, e.kind, e.endpoint, e.affiliation_name
      from unnest(${sql.param([npi, ...neighbors])}::text[]) asked(npi)
     cross join lateral (
       select * from provider_endpoints e
        where e.npi = asked.npi and (e.npi = ${npi} or e.endpoint like '%@%')
        order by e.kind, e.endpoint limit ${ENDPOINTS_AT_MOST}) e
     order by e.npi, e.kind, e.endpoint`);
  const grouped = Map.groupBy(rows, (row) => row.npi);
  return new Map(
    [...grouped].map(([one, own]) => [
      one,
      own.map(({ kind, endpoint, affiliation_name: affiliationName }) => ({
        kind,
        endpoint,
        affiliationName,
      })),
    ]),
  );
}

interface EndpointRow extends Record<string, unknown> {
  npi: string;
  kind: EndpointKind;
  endpoint: string;
  affiliation_name: string | null;
}

/** Other name type 3 is "Doing Business As"; the rest are names of the past, and others' words. */
async function readOrganizationNames(
  tx: Pick<Transaction, 'execute'>,
  npis: readonly string[],
): Promise<Map<string, { name: string | null; otherNames: string[] }>> {
  if (npis.length === 0) return new Map();
  const rows = await tx.execute<{ npi: string; name: string | null; other_names: string[] }>(sql`
    select p.npi, p.organization_name as name,
           array(select n.name from provider_other_names n
                  where n.npi = p.npi and n.type_code = '3' order by n.name limit ${NEIGHBORS_AT_MOST}) as other_names
      from providers p where p.npi = any(${sql.param([...npis])}::text[])`);
  return new Map(rows.map(({ npi, name, other_names: otherNames }) => [npi, { name, otherNames }]));
}
