import { readdir, readFile } from 'node:fs/promises';
import test from 'ava';
import {
  holdsDomain,
  isDisposable,
  isFreeMail,
  readList,
} from '../../../activities/verification/domains.ts';
import { classify } from '../../../activities/verification/email-type.ts';
import { NOBODY_KNOWN, ownerOf } from '../../../activities/verification/local-part.ts';
import { isLookalike } from '../../../activities/verification/lookalikes.ts';
import { parseAddress } from '../../../activities/verification/syntax.ts';
import { buildLists, describe } from '../../../deploy/build/lists.ts';
import { checkNames } from '../../../deploy/build/mail-domains.ts';
import { SUBJECT } from '../../support/vendors.ts';

const built = buildLists();
const THROWAWAY = ['yopmail.info', 'throwawayemail.com', 'mailinator.pl', 'no-spam.hu'];
const WHOSE = { ...SUBJECT, strangers: [] };
const FOLDER = new URL('../../../activities/verification/lists/', import.meta.url);

test('the generated lists of domains are up to date with the installed packages', async (t) => {
  for (const [name, text] of Object.entries(built)) {
    // This does not use t.is, which would print thousands of lines.
    t.true(
      (await readFile(new URL(name, FOLDER), 'utf8')) === text,
      `${name} is old: npm run lists`,
    );
  }
});

test('generated lists name their packages with version, license, and date of review', (t) => {
  const source = /^# From (\S+) [0-9.]+ \((\S+)\), reviewed on \d{4}-\d\d-\d\d$/gm;
  for (const [name, text] of Object.entries(built)) {
    const sources = [...text.matchAll(source)];
    t.true(sources.length > 0, name);
    for (const [line, , license] of sources) {
      if (license !== 'MIT' && license !== 'ISC') continue;
      const [, after = ''] = text.split(line);
      t.true(/^\n(?:#.*\n)*?# Copyright/.test(after), line);
    }
  }
});

test('every list that is written by hand says where its entries come from', async (t) => {
  const byHand = (await readdir(FOLDER)).filter((name) => !Object.hasOwn(built, name));
  t.true(byHand.length > 5);
  for (const name of byHand) {
    const header =
      (await readFile(new URL(name, FOLDER), 'utf8')).match(/^(?:#.*\n)+/)?.[0] ?? '';
    t.regex(header.replace(/\n# /g, ' '), /\b(?:from|after|By hand)\b/i, name);
  }
});

for (const name of [
  ...[
    'disposable',
    'personal',
    'personal-more',
    'relays',
    'hisps',
    'parkers',
    'organizations',
  ],
  ...['mail-providers', 'near-misses'],
]) {
  test(`the domains in the list ${name} are normalized, unique, and sorted`, (t) => {
    const list = [...readList(name)];
    t.true(list.length > 3);
    t.deepEqual(
      list.filter((domain) => parseAddress(`jo@${domain}`)?.domain !== domain),
      [],
    );
    t.deepEqual(list, [...list].sort());
  });
}

test('every entry of the list of placeholders is a domain or a plain local part', (t) => {
  for (const entry of readList('placeholders')) {
    t.true(
      /^[a-z]+(?:\/[a-z])?@$/.test(entry) ||
        parseAddress(`jo@${entry}`)?.domain === entry,
      entry,
    );
  }
});

test('the list of confusables has pairs of a lookalike character and its Latin letter', (t) => {
  for (const pair of readList('confusables')) t.regex(pair, /^[^a-z][a-z]$/u);
});

test('lists written by hand do not repeat entries of the generated lists', (t) => {
  for (const name of ['personal', 'roles']) {
    const listed = readList(name);
    t.deepEqual(
      [...readList(`${name}-more`)].filter((domain) => holdsDomain(listed, domain)),
      [],
    );
  }
});

for (const name of words(`
  info marketing sales support abuse noc security postmaster hostmaster usenet news webmaster www uucp ftp
  diabetes-request owner-diabetes mailer-daemon mailerdaemon mailer daemon bounce bounces bounces+jo root nobody
  noreply no-reply do-not-reply devnull majordomo mailman listserv undisclosed-recipients dmarc tls-rpt training mammo
  scripts fellows chaplain`)) {
  test(`a mailbox called ${name} is shared`, (t) => {
    t.is(ownerOf({ local: name, domain: 'hartleydental.com' }, WHOSE), 'shared');
    t.is(ownerOf({ local: name, domain: 'gmail.com' }, NOBODY_KNOWN), 'shared');
  });
}

test('names of people count as roles only if we wrote them into our own list', (t) => {
  const roles = readList('roles');
  for (const name of readList('given-names', 'surnames')) {
    if (roles.has(name)) t.fail(name);
  }
  t.pass();
});

test('no domain is in both the disposable and the personal lists', (t) => {
  t.deepEqual([...readList('personal', 'personal-more')].filter(isDisposable), []);
});

test('throwaway domains are not personal, but real ones that a package lists are', (t) => {
  for (const domain of THROWAWAY) t.false(isFreeMail(domain), domain);
  for (const domain of THROWAWAY) t.true(isDisposable(domain), domain);
  for (const domain of ['dr.com', 'sdf.org', 'tom.com', 'posteo.de'])
    t.true(isFreeMail(domain) && !isDisposable(domain), domain);
});

test('domains of organizations are neither personal nor throwaway', (t) => {
  for (const domain of ['nus.edu.sg', 'unican.es', ...readList('organizations')])
    t.false(isFreeMail(domain) || isDisposable(domain), domain);
});

test('the lists are not built while the domain of an organization is personal', (t) => {
  t.throws(() => checkNames(['gmail.com', 'riverclinic.com']), {
    message: /names: riverclinic\.com\. Add each to/,
  });
});

test('a list is not built from a version of a package that we did not review', (t) => {
  const source = {
    name: 'mailchecker',
    version: '1.0.0',
    reviewed: '2026-11-28',
    licenseFile: null,
  };
  t.throws(() => describe(source), {
    message:
      /^mailchecker [0-9.]+ is installed, but deploy\/build\/lists\.ts names 1\.0\.0/,
  });
});

test('no listed mail domain counts as a misspelling of another', (t) => {
  const real = [
    ...readList('personal', 'personal-more', 'relays', 'hisps', 'near-misses'),
  ];
  t.deepEqual(
    real.filter((domain) => isLookalike(domain, null)),
    [],
  );
});

for (const domain of words(`
  gmail.com fastmail.com comcast.net physician.com doctor.com cox.net charter.net spectrum.net nyc.rr.com
  twc.com bellsouth.net sbcglobal.net att.net worldnet.att.net ameritech.net pacbell.net swbell.net snet.net
  flash.net prodigy.net frontier.com frontiernet.net windstream.net centurylink.net centurytel.net q.com
  qwest.net embarqmail.com earthlink.net mindspring.com peoplepc.com optonline.net optimum.net suddenlink.net
  cableone.net sparklight.net wowway.com rcn.com mediacombb.net mchsi.com hawaiiantel.net gci.net tds.net
  verizon.net gte.net bellatlantic.net brighthouse.com roadrunner.com insightbb.com netzero.net juno.com
  hughes.net wildblue.net exede.net zoominternet.net atlanticbb.net breezeline.net metrocast.net grandecom.net
  wavecable.com knology.net fairpoint.net myfairpoint.net ziplyfiber.com epbfi.com ptd.net sonic.net
  speakeasy.net clearwire.net alaska.net midco.net fuse.net zoomtown.com ntelos.net shentel.net comporium.net
  hargray.com buckeye-express.com paulbunyan.net arvig.net bresnan.net iglou.com voyager.net
  alumni.stanford.edu alum.mit.edu post.harvard.edu aya.yale.edu cal.berkeley.edu caa.columbia.edu
  alumni.harvard.edu stanfordalumni.org psualum.com uclaalumni.net alum.dartmouth.org`)) {
  test(`an address at ${domain} is personal, no matter what the vendor says`, (t) => {
    t.is(classify(domain, 'professional', NOBODY_KNOWN), 'personal');
  });
}

function words(text: string): string[] {
  return text.trim().split(/\s+/);
}
