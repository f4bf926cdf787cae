import type { Database } from '../../db/connection/client.ts';
import { isOfAnother, readMailDomains } from '../../db/lookups/mail-domains.ts';
import { type ProviderFacts, readProvider } from '../../db/providers/subject.ts';
import type { RequestedType } from '../../db/words.ts';
import type { Person, PersonName, Subject } from '../vendors/vendor.ts';
import { classifyEndpoint } from '../verification/looks.ts';
import { patternOf, writeEmail } from '../verification/patterns.ts';
import { parseAddress } from '../verification/syntax.ts';
import { clearEmployer, deriveEmployers } from './employer.ts';
import {
  capitalize,
  generationOf,
  hasOneCase,
  middleName,
  nameWords,
  personName,
  restoreLetters,
  stripTitles,
} from './names.ts';
import { usState } from './us-states.ts';

/**
 * Returns the facts about a provider that we send to vendors: the name as people write it, and the
 * organizations where the provider may work. If the NPI does not belong to an active individual,
 * the subject has no person and no organization.
 * @param facts the recorded facts about this NPI, or null if neither the NPPES files nor the
 * registry has it
 */
export function buildSubject(
  npi: string,
  facts: ProviderFacts | null,
  requestedType: RequestedType,
): Subject {
  const person = facts && personOf(facts);
  if (facts === null || person === null) {
    return {
      npi,
      requestedType,
      person: null,
      organization: null,
      otherOrganizations: [],
      strangers: [],
      patterns: [],
      writtenEmail: null,
    };
  }
  const [organization = null, ...otherOrganizations] = deriveEmployers(facts);
  const strangers = facts.colleagues.map(({ lastName }) => nameWords(lastName).join(''));
  return {
    npi,
    requestedType,
    person,
    organization,
    otherOrganizations,
    strangers: [...new Set(strangers)],
    patterns: [],
    writtenEmail: null,
  };
}

/**
 * Reads what the database knows about a provider, and returns it as a subject.
 * @param npi 10 digits
 */
export async function readSubject(
  db: Database,
  npi: string,
  requestedType: RequestedType,
): Promise<Subject> {
  const facts = await readProvider(db, npi);
  return await addPatterns(db, buildSubject(npi, facts, requestedType));
}

/**
 * Adds the forms of the addresses at the domains of the likely employers, and the address that the
 * person may have in one of these forms.
 */
export async function addPatterns(db: Database, subject: Subject): Promise<Subject> {
  const domains = await readMailDomains(db, employerDomainsOf(subject));
  const patterns = domains.map(patternOf).filter((pattern) => pattern !== null);
  const employer = clearEmployer(subject);
  const pattern = patterns.find(({ domain }) => domain === employer?.domain);
  if (pattern === undefined || subject.person === null) {
    return { ...subject, patterns };
  }
  const email = writeEmail(pattern, subject.person);
  // The address may be a namesake's.
  if (email === null || (await isOfAnother(db, email, subject.npi))) {
    return { ...subject, patterns };
  }
  return { ...subject, patterns, writtenEmail: email };
}

/** Returns the domains of the provider's likely employers. */
export function employerDomainsOf({
  organization,
  otherOrganizations,
}: Pick<Subject, 'organization' | 'otherOrganizations'>): string[] {
  const employers = [organization, ...otherOrganizations];
  return employers.flatMap((employer) => employer?.domain ?? []);
}

/**
 * Returns the ordinary email addresses among the endpoints that a provider has entered in NPPES,
 * normalized. They cost nothing, but may contain typing errors and have not been checked.
 */
export function endpointCandidates(facts: ProviderFacts): string[] {
  const addresses = new Set<string>();
  for (const { kind, endpoint } of facts.endpoints) {
    if (classifyEndpoint(kind, endpoint) !== 'email') continue;
    const parsed = parseAddress(endpoint);
    if (parsed) addresses.add(parsed.email);
  }
  return [...addresses];
}

function personOf(facts: ProviderFacts): Person | null {
  const name = nameOf(facts.firstName, facts.lastName);
  if (facts.entityType !== 1 || !facts.active || name === null) {
    return null;
  }
  const practice = practiceOf(facts);
  const states = facts.otherStates.map((one) => usState(one, null));
  return {
    ...name,
    middle: middleName(facts.middleName),
    generation: generationIn(facts),
    otherNames: [...otherNamesOf(facts, name), ...restoredNames(facts)],
    profileNames: facts.profiles.flatMap(({ givenNames }) => nameWords(givenNames)),
    profileSurnames: facts.profiles.flatMap(({ surname }) => surname ?? []),
    practice,
    otherStates: states
      .filter((one) => one !== null)
      .filter((one) => one !== practice.state),
  };
}

/** Returns the other name in NPPES and those with a former surname, each once. */
function otherNamesOf(facts: ProviderFacts, name: PersonName): PersonName[] {
  // If the other name lacks a first or a last name, that part comes from the current name.
  const other = nameOf(
    facts.otherFirstName ?? facts.firstName,
    facts.otherLastName ?? facts.lastName,
  );
  const former = facts.formerLastNames.map((last) => nameOf(facts.firstName, last));
  const all = [name, other, ...former].filter((one) => one !== null);
  const isFirst = (one: PersonName, index: number) =>
    all.findIndex(({ first, last }) => first === one.first && last === one.last) ===
    index;
  return all.filter(isFirst).slice(1);
}

/** Returns the generation. Some people enter it behind the last or the middle name. */
function generationIn({
  nameSuffix,
  lastName,
  middleName,
}: ProviderFacts): number | null {
  // The `x` stands for the first name, because the last word of a name is never removed.
  const names = [lastName ?? '', `x ${middleName ?? ''}`];
  const generations = names.map((name) => stripTitles(name).generation);
  const known = [generationOf(nameSuffix), ...generations];
  return known.find((one) => one !== null) ?? null;
}

/**
 * Returns the names that a person may have if NPPES lost some of their letters (`MU?OZ`). First and
 * last name are restored as one text, because the number of results is limited for both together.
 */
function restoredNames({ firstName, lastName }: ProviderFacts): PersonName[] {
  const both = restoreLetters(`${firstName ?? ''}|${lastName ?? ''}`);
  return both.flatMap((name) => {
    const [first = '', last = ''] = name.split('|');
    return nameOf(first, last) ?? [];
  });
}

function practiceOf(facts: ProviderFacts): Person['practice'] {
  const zip = facts.practicePostalCode?.match(/^[0-9]{5}/);
  return {
    line1: textOf(facts.practiceLine1),
    city: cityOf(facts.practiceCity),
    state: usState(facts.practiceState, null),
    zip: zip ? zip[0] : null,
  };
}

/**
 * Reads the name fields of a record. `Null` counts as a surname if there is a first name. If the
 * last name is unknown (`LNU`, `NLN`), the person has a single name, which becomes the last name.
 */
function nameOf(first: string | null, last: string | null): PersonName | null {
  const given = personName(first);
  if (given !== null && last !== null) {
    if (/^\s*(?:lnu|nln)\s*$/i.test(last)) {
      return { first: '', last: given };
    }
    if (/^\s*null\s*$/i.test(last)) return { first: given, last: 'Null' };
  }
  const family = personName(last);
  if (family === null) return null;
  return { first: given ?? '', last: family };
}

function cityOf(text: string | null): string | null {
  const city = textOf(text);
  if (city === null || !hasOneCase(city)) return city;
  return capitalize(city);
}

function textOf(text: string | null): string | null {
  return text?.replace(/\s+/g, ' ').trim() || null;
}
