import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { clearEmployer } from '../../activities/person/employer.ts';
import { buildSubject } from '../../activities/person/subject.ts';
import { createHunter } from '../../activities/vendors/hunter.ts';
import type {
  Organization,
  Step,
  Subject,
  Vendor,
} from '../../activities/vendors/vendor.ts';
import { organizationKey } from '../../db/providers/keys.ts';
import { readProvider } from '../../db/providers/subject.ts';
import { employerDomains } from '../../db/schema.ts';
import type { SimPerson } from '../../deploy/local/sim/people.ts';
import { createSimulator } from '../../deploy/local/simulator.ts';
import { freshDatabase, temporaryFolder } from '../support/database.ts';
import {
  CLINICIANS,
  clinicianCsv,
  domainCsv,
  ORGANIZATIONS,
} from '../support/employers.ts';
import { operatorOn } from '../support/operator.ts';
import { providersIn } from '../support/providers.ts';
import { storeEmail } from '../support/stored.ts';

const { db, url } = freshDatabase(test);
const folder = temporaryFolder(test.after.always);

/**
 * How well 500 employers are known, and the results of a vendor that searches by name and employer.
 */
interface Measured {
  /** People whose likeliest employer is right, with its domain. */
  right: number;
  /** People whose likeliest employer is right, with only its name. */
  named: number;
  /** People whose likeliest employer is another one, or has the domain of another one. */
  wrong: number;
  /** People without a known employer. */
  none: number;
  questions: number;
  /** Responses with the person's address, which the vendor has for 325 people. */
  hits: number;
  /** Responses with the address of another person. */
  strangers: number;
  /** People who were looked up at another employer. */
  misplaced: number;
}

/**
 * Measured with the code before it knew several employers, clinicians' groups and the operator's
 * table.
 */
const BEFORE: Measured = {
  ...{ right: 60, named: 135, wrong: 64, none: 241 },
  ...{ questions: 259, hits: 123, strangers: 2, misplaced: 64 },
};

function isTrue({ name, domain }: Organization, { organization }: SimPerson): boolean {
  if (domain !== null) return domain === organization.domain;
  const keys = [organization.name, organization.dba ?? ''].map(organizationKey);
  return keys.includes(organizationKey(name ?? ''));
}

const NEVER = new AbortController().signal;

/** Returns the last step, and the employers in the requests. */
async function ask(
  vendor: Vendor,
  subject: Subject,
): Promise<{ step: Step; asked: Organization[] }> {
  const employers = [subject.organization, ...subject.otherOrganizations].filter(
    (one) => one !== null,
  );
  let step = await vendor.submit(subject, NEVER);
  let turns = Math.min(1, employers.length);
  while (step.kind === 'pending') {
    turns = Math.max(turns, Number(step.jobRef.split(':')[0]) + 1);
    step = await vendor.poll(step.jobRef, subject, NEVER);
  }
  return { step, asked: employers.slice(0, turns) };
}

async function measure(vendor: Vendor): Promise<Measured> {
  const measured = {
    right: 0,
    named: 0,
    wrong: 0,
    none: 0,
    questions: 0,
    hits: 0,
    strangers: 0,
    misplaced: 0,
  };
  for (let from = 0; from < CLINICIANS.length; from += AT_ONCE) {
    await Promise.all(
      CLINICIANS.slice(from, from + AT_ONCE).map(async ({ person }) => {
        const subject = buildSubject(
          person.npi,
          await readProvider(db, person.npi),
          'any',
        );
        const { organization } = subject;
        if (organization === null) measured.none += 1;
        else if (!isTrue(organization, person)) measured.wrong += 1;
        else if (organization.domain === null) measured.named += 1;
        else measured.right += 1;
        const { step, asked } = await ask(vendor, subject);
        measured.questions += asked.length;
        if (asked.some((one) => !isTrue(one, person))) measured.misplaced += 1;
        if (step.kind === 'found')
          measured[
            step.candidates[0]?.email === person.workEmail ? 'hits' : 'strangers'
          ] += 1;
      }),
    );
  }
  return measured;
}

const AT_ONCE = 20;

/** Counts the domains that we know, among the people with a colleague in the directory. */
async function amongColleagues() {
  const counted = { people: 0, right: 0, wrong: 0 };
  for (const { person } of CLINICIANS) {
    const facts = await readProvider(db, person.npi);
    const hasColleague = facts?.colleagues.some(
      ({ domain }) => domain === person.organization.domain,
    );
    if (facts === null || !hasColleague) continue;
    counted.people += 1;
    const domain = clearEmployer(buildSubject(person.npi, facts, 'any'))?.domain ?? null;
    if (domain === person.organization.domain) counted.right += 1;
    else if (domain !== null) counted.wrong += 1;
  }
  return counted;
}

test.serial(
  'for most of 500 clinicians we find the employer, and it is rarely the wrong one',
  async (t) => {
    const simulator = await createSimulator({ port: 0, speed: 1000, apiKey: 'sim' });
    t.teardown(() => simulator.close());
    const vendor = createHunter({ baseUrl: simulator.urls.hunter, apiKey: 'sim' });
    const { person, practice, otherName, location } = providersIn(db);
    for (const {
      npi,
      name,
      otherName: door,
      parentName,
      place,
      endpoints,
    } of ORGANIZATIONS) {
      await practice(name, place, endpoints, { npi, parentName });
      if (door !== null) await otherName(npi, door, '3');
    }
    for (const { person: one, place, location: other, endpoints } of CLINICIANS) {
      const names = {
        firstName: one.first.toUpperCase(),
        lastName: one.last.toUpperCase(),
      };
      await person(place, endpoints, { npi: one.npi, ...names });
      if (other !== null) await location(one.npi, 'CO', other);
    }
    const { json } = operatorOn(url);
    const imported = async (what: string, text: string) => {
      const path = join(folder, `${what}.csv`);
      await writeFile(path, text);
      return await json('import', what, path);
    };

    const nppes = await measure(vendor);
    await imported('clinicians', clinicianCsv());
    const clinicians = await measure(vendor);
    await imported('domains', domainCsv());
    const all = await measure(vendor);
    await db.drizzle.delete(employerDomains);
    for (const { person: one } of CLINICIANS.filter((_, index) => index % 2 === 0)) {
      const { npi, workEmail: email } = one;
      await storeEmail(db, { npi, email, source: 'crm' });
    }
    const directory = await measure(vendor);
    const known = await amongColleagues();

    for (const [what, one] of Object.entries({
      before: BEFORE,
      nppes,
      clinicians,
      all,
      directory,
    })) {
      const share = (count: number) =>
        `${((count / CLINICIANS.length) * 100).toFixed(1)} %`;
      t.log(
        `${what}: employer right with its domain ${one.right}, with its name alone ${one.named}, wrong ${one.wrong}, ` +
          `unknown ${one.none}; ${one.questions} questions, hit rate ${share(one.hits)}, ` +
          `wrong-employer rate ${share(one.misplaced)}, strangers ${one.strangers}`,
      );
    }
    t.is(CLINICIANS.length, 500);
    t.log(`with colleagues in the directory: ${JSON.stringify(known)}`);
    t.true(directory.right > clinicians.right && directory.hits > clinicians.hits);
    t.true(known.people > 100);
    t.true(known.right >= 0.6 * known.people);
    t.true(known.wrong <= 0.03 * known.people);
    t.true(nppes.right >= 3 * BEFORE.right && nppes.wrong < 0.7 * BEFORE.wrong);
    t.true(all.right >= 5 * BEFORE.right && all.wrong < BEFORE.wrong);
    t.true(all.hits >= 2 * BEFORE.hits);
    t.true(
      all.strangers <= BEFORE.strangers,
      'people of one name at one place that is only one of theirs',
    );
  },
);
