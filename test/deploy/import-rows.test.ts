import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { storeOwnEmails } from '../../db/lookups/imports.ts';
import { listAudit } from '../../db/operations/audit.ts';
import { addSuppression, hashAddress } from '../../db/privacy/suppressions.ts';
import { storedEmails } from '../../db/schema.ts';
import { freshDatabase, temporaryFolder } from '../support/database.ts';
import { operatorOn, spawnOperator, WHY } from '../support/operator.ts';
import { workbookOf } from '../support/workbook.ts';

// Tests imports of the operator's own files. Each row gets a verdict, and a file may be imported
// again.

const BY = { actor: 'test', reason: 'test' };
const DAY = 86_400_000;
const NPI = '1234567893';

const { db, url } = freshDatabase(test);
const folder = temporaryFolder(test.after.always);

async function file(name: string, content: string | Buffer): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, content);
  return path;
}

async function verdictsIn(path: string): Promise<string[]> {
  const [heading, ...lines] = (await readFile(path, 'utf8')).trimEnd().split('\n');
  if (heading !== 'line,verdict') throw new Error(`the heading is ${heading}`);
  return lines;
}

const ago = (days: number) => new Date(Date.now() - days * DAY).toISOString();

async function stored(email: string) {
  const [found] = await db.drizzle
    .select()
    .from(storedEmails)
    .where(eq(storedEmails.email, email));
  return found;
}

test('importing our own addresses prints a verdict for each row and stores usable ones', async (t) => {
  await addSuppression(db, BY, {
    kind: 'email',
    value: hashAddress('gone@clinic-one.com'),
  });
  const rows: [string, string][] = [
    [`${NPI},Jane.Roe@Clinic-One.com,,${ago(3)},crm`, 'stored'],
    [`${NPI},jroe@gmail.com,professional,${ago(3).slice(0, 10)},`, 'stored'],
    [`${NPI},"roe@clinic-one.com",,,`, 'candidate'],
    [`${NPI},old@clinic-one.com,,${ago(40)},`, 'stale'],
    [`${NPI},GONE@clinic-one.com,,${ago(3)},`, 'suppressed'],
    [`1234567890,jane@clinic-one.com,,,`, 'invalid_npi'],
    [`12345,jane@clinic-one.com,,,`, 'invalid_npi'],
    [`${NPI},jane.clinic-one.com,,,`, 'invalid_address'],
    [`${NPI},"""jane roe""@clinic-one.com",,,`, 'invalid_address'],
    [`${NPI},jane@clinic-one.invalidtld,,,`, 'no_suffix'],
    [`${NPI},jane@mailinator.com,,,`, 'disposable'],
    [`${NPI},jane@privaterelay.appleid.com,,,`, 'relay'],
    [`${NPI},front.desk@clinic-one.com,,,`, 'shared'],
    [`${NPI},jane@direct.clinic-one.com,,,`, 'direct'],
    [`${NPI},jane@clinic-two.com,work,,`, 'bad_type'],
    [`${NPI},jane@clinic-two.com,,02/03/2026,`, 'bad_date'],
    [`${NPI},jane@clinic-two.com,,2026-02-30,`, 'bad_date'],
    [`${NPI},jane@clinic-two.com,,2026-02-03T10:00:00,`, 'bad_date'],
    [`${NPI},jane@clinic-two.com,,${ago(-3)},`, 'bad_date'],
    [`${NPI},jane@clinic-two.com,,,two words`, 'bad_source'],
    [`${NPI},${'j'.repeat(1_000)}@clinic-two.com,,,`, 'email_too_long'],
    [`${NPI},jane@clinic-two.com,,,,Roe`, 'too_many_values'],
  ];
  const path = await file(
    'own.csv',
    `npi,email,type,validated_at,source\n${rows.map(([row]) => row).join('\n')}\n`,
  );
  const verdicts = join(folder, 'own.verdicts.csv');
  const args = [
    'import',
    'emails',
    path,
    '--source',
    'licensed',
    '--verdicts',
    verdicts,
    '--json',
    ...WHY,
  ];
  const { code, stdout, stderr } = await spawnOperator(url, args);
  t.deepEqual([code, stderr], [1, '']);
  const lines = rows.map(([, verdict], n) => ({ line: n + 2, verdict }));
  const report = JSON.parse(stdout);
  t.like(report, {
    file: 'own.csv',
    rows: 22,
    verdicts: { stored: 2, bad_date: 4, too_many_values: 1 },
  });
  t.deepEqual(report.refused, lines.slice(4), 'the first four rows were stored');
  t.deepEqual(
    await verdictsIn(verdicts),
    lines.map(({ line, verdict }) => `${line},${verdict}`),
  );

  t.like(await stored('jane.roe@clinic-one.com'), {
    ...{
      npi: NPI,
      verdict: 'unknown',
      reason: 'imported',
      emailType: 'professional',
      source: 'crm',
    },
  });
  t.like(
    await stored('jroe@gmail.com'),
    { emailType: 'personal', source: 'licensed' },
    'the list wins',
  );
  t.like(await stored('roe@clinic-one.com'), {
    verdict: 'unknown',
    reason: 'imported',
    lastValidatedAt: null,
  });
  const [held] = await db.drizzle.execute(
    sql`select count(*)::int as rows from stored_emails where npi = ${NPI}`,
  );
  t.is(held?.rows, 4);

  const again = await spawnOperator(url, args);
  t.like(
    JSON.parse(again.stdout),
    { verdicts: { unchanged: 4, suppressed: 1 } },
    again.stderr,
  );
});

test('an imported address is rejected if it does not fit the person in NPPES', async (t) => {
  const [person, organization, gone, unknown] = [
    '1518000017',
    '1518000025',
    '1518000033',
    '1518000041',
  ];
  const unheardOf = '1518000058';
  await db.drizzle.execute(sql`
    insert into providers (npi, entity_type, first_name, last_name, organization_name, deactivated_on, origin, row_hash)
    values (${person}, 1, 'JOHN', 'SMITH', null, null, 'nppes', 0),
           (${organization}, 2, null, null, 'CEDAR VALLEY CLINIC', null, 'nppes', 0),
           (${gone}, 1, 'JOHN', 'SMITH', null, '2026-01-01', 'nppes', 0)`);
  await db.drizzle.execute(sql`
    insert into provider_endpoints (npi, kind, endpoint) values (${person}, 'DIRECT', 'jsmith@typed.cedar.com')`);
  // The registry did not know this NPI two days ago. That was valid for one day.
  await db.drizzle.execute(sql`
    insert into providers (npi, deactivated_on, origin, row_hash, imported_at)
    values (${unheardOf}, current_date - 2, 'registry', 0, now() - interval '2 days')`);
  const rows: [string, string][] = [
    [`${person},john.smith@cedar.com,${ago(3)},`, 'stored'],
    [`${person},karen.jones@cedar.com,${ago(3)},`, 'other_person'],
    [`${person},ksmith@cedar.com,${ago(3)},`, 'other_person'],
    [`${person},billing@cedar.com,${ago(3)},`, 'shared'],
    [`${person},jsmith@typed.cedar.com,${ago(3)},`, 'direct'],
    [`${person},jsmith@cedar.com,${ago(3)},Dr. John Q. Smith MD`, 'stored'],
    [`${person},js@cedar.com,${ago(3)},Karen Jones`, 'identity_mismatch'],
    [`${organization},john.smith@cedar.com,${ago(3)},`, 'organization_npi'],
    [`${gone},john.smith@cedar.com,${ago(3)},`, 'deactivated'],
    [`${unknown},karen.jones@cedar.com,${ago(3)},`, 'stored'],
    [`${unknown},kjones@cedar.com,${ago(3)},Karen Jones`, 'unknown_npi'],
    [`${unheardOf},kjones@cedar.com,${ago(3)},Karen Jones`, 'unknown_npi'],
  ];
  const path = await file(
    'people.csv',
    `npi,email,validated_at,name\n${rows.map(([row]) => row).join('\n')}`,
  );
  const verdicts = join(folder, 'people.verdicts.csv');
  const args = ['import', 'emails', path, '--verdicts', verdicts, '--json', ...WHY];
  t.is((await spawnOperator(url, [...args, '--dry-run'])).code, 1);
  t.deepEqual(
    await verdictsIn(verdicts),
    rows.map(([, verdict], n) => `${n + 2},${verdict.replace('stored', 'acceptable')}`),
  );
  const { stdout } = await spawnOperator(url, args);
  t.like(JSON.parse(stdout), {
    verdicts: { stored: 3, other_person: 2, shared: 1, direct: 1, identity_mismatch: 1 },
  });
  t.deepEqual(
    await verdictsIn(verdicts),
    rows.map(([, verdict], n) => `${n + 2},${verdict}`),
  );
  const kept = await db.drizzle.execute(sql`
    select email, verdict || ' ' || reason as state from stored_emails where npi in (${person}, ${organization}, ${gone}) order by email`);
  t.deepEqual(
    kept.map(({ email, state }) => [email, state]),
    [
      ['john.smith@cedar.com', 'unknown imported'],
      ['jsmith@cedar.com', 'unknown imported'],
    ],
  );
});

test('importing an address again as unchecked does not undo an earlier check', async (t) => {
  const row = {
    npi: '1520000013',
    email: 'again@clinic.com',
    emailType: 'professional',
    source: 'crm',
  } as const;
  const at = (days: number) => new Date(Date.now() - days * DAY);
  await storeOwnEmails(db, [{ ...row, validatedAt: at(9), checked: true }]);
  await storeOwnEmails(db, [{ ...row, validatedAt: at(2), checked: false }]);
  t.like(await stored('again@clinic.com'), { verdict: 'valid' });
});

test('the newest data about an address is kept, whether from a vendor or an import', async (t) => {
  const npi = '1003000100';
  const own = (email: string, days: number | null) => ({
    ...{ npi, email, emailType: 'professional' as const, source: 'crm', checked: true },
    validatedAt: days === null ? null : new Date(Date.now() - days * DAY),
  });
  const place = (email: string, values: string) =>
    db.drizzle.execute(sql`
      insert into stored_emails (npi, email, email_type, verdict, last_validated_at, reason, updated_at, source)
      values (${npi}, ${email}, 'professional', ${sql.raw(values)}, 'vendor')`);
  const day = (days: number) => `now() - interval '${days} days'`;
  await place('newer@clinic.com', `'valid', ${day(5)}, null, ${day(5)}`);
  await place('older@clinic.com', `'valid', ${day(20)}, null, ${day(1)}`);
  await place('bounced@clinic.com', `'invalid', null, null, ${day(5)}`);
  await place('mended@clinic.com', `'invalid', null, null, ${day(20)}`);
  await place('dated@clinic.com', `'unknown', null, 'imported', ${day(1)}`);
  const emails = ['newer', 'older', 'bounced', 'mended', 'dated'].map(
    (name) => `${name}@clinic.com`,
  );
  const rows = emails.map((email) => own(email, 10));
  t.deepEqual(await storeOwnEmails(db, rows), [
    'unchanged',
    'stored',
    'unchanged',
    'stored',
    'stored',
  ]);
  t.like(await stored('bounced@clinic.com'), { verdict: 'invalid', source: 'vendor' });
  t.like(await stored('mended@clinic.com'), {
    verdict: 'valid',
    source: 'crm',
  });
  t.deepEqual(
    await storeOwnEmails(db, rows),
    emails.map(() => 'unchanged'),
  );

  // An address that has to be checked again does not become valid by a claim that we already had.
  await db.drizzle.execute(
    sql`update stored_emails set verdict = 'unknown', reason = 'forgotten' where email = 'mended@clinic.com'`,
  );
  t.deepEqual(await storeOwnEmails(db, [rows[3] ?? own('', null)]), ['unchanged']);
  t.is((await stored('mended@clinic.com'))?.reason, 'forgotten');
  // A row without a date does not prove that the address is valid.
  t.deepEqual(await storeOwnEmails(db, [own('older@clinic.com', null)]), ['unchanged']);
});

test('if an import has several rows for an address, the row with the newest date is stored', async (t) => {
  const row = {
    npi: '1568946812',
    email: 'twice@clinic.com',
    emailType: 'professional',
    source: 'crm',
    checked: true,
  } as const;
  const dates = [9, 3, 6].map((days) => new Date(Date.now() - days * DAY));
  const verdicts = await storeOwnEmails(
    db,
    dates.map((validatedAt) => ({ ...row, validatedAt })),
  );
  t.deepEqual(verdicts, ['unchanged', 'stored', 'unchanged']);
  t.deepEqual((await stored('twice@clinic.com'))?.lastValidatedAt, dates[1]);
});

test('an import finds columns by name, or by order if the file has no header', async (t) => {
  const npi = '1720377294';
  const headed = await file(
    'headed.csv',
    `\ufeff,EMAIL,Validated At,NPI\r\nx,a@clinic-three.com,,${npi}\r\n\r\n`,
  );
  const bare = await file('bare.csv', `${npi},b@clinic-three.com`);
  for (const path of [headed, bare]) {
    const { code, stdout } = await spawnOperator(url, ['import', 'emails', path]);
    t.is(code, 0);
    t.regex(stdout, /^rows +1$[\s\S]*^candidate +1$/m);
  }
  const unnamed = await file('unnamed.csv', 'name,address\nx,y\n');
  const refused = await spawnOperator(url, ['import', 'emails', unnamed]);
  t.deepEqual([refused.code, refused.stdout], [1, '']);
  t.regex(refused.stderr, /^operator: .*npi and email.*\n$/);
});

test("an import of emails reads the API's names of columns", async (t) => {
  const start = '1720377294,spelled@clinic-three.com';
  for (const [name, verdict] of [
    ['email_last_validated', 'stored'],
    ['last_validated_at', 'unchanged'],
  ] as const) {
    const rows = `${start},work,${ago(3)}\n${start},professional,${ago(3).slice(0, 10)}\n`;
    const path = await file('spelled.csv', `npi,email,Email Type,${name}\n${rows}`);
    const { stdout } = await spawnOperator(url, ['import', 'emails', path, ...WHY]);
    t.regex(stdout, /^bad_type +1$/m);
    t.regex(stdout, new RegExp(`^${verdict} +1$`, 'm'));
  }
});

test('an import rejects a header with unknown or repeated columns, and names them', async (t) => {
  for (const [kind, header, message] of [
    [
      'emails',
      'npi,email,Checked On,kind',
      /unknown columns: Checked On, kind; .*npi, email, type,/,
    ],
    ['emails', 'npi,email,type,email_type', /two columns are type; remove or rename one/],
    [
      'domains',
      'organization,domain,notes',
      /unknown columns: notes; .*organization, domain,/,
    ],
    ['suppressions', 'value,kind,notes', /unknown columns: notes; .*value, kind, reason/],
  ] as const) {
    const path = await file('unknown.csv', `${header}\n${NPI},x@clinic-three.com,y,z\n`);
    const { code, stderr } = await spawnOperator(url, ['import', kind, path, ...WHY]);
    t.is(code, 1);
    t.regex(stderr, message);
  }
});

test('an import rejects an empty file', async (t) => {
  const { operator } = operatorOn(url);
  for (const content of ['', '\n\n']) {
    const path = await file('empty.csv', content);
    const given = await operator('import', 'suppressions', path, ...WHY);
    t.deepEqual([given.code, given.stdout], [1, '']);
    t.regex(given.stderr, /^operator: .*is empty.*\n$/);
  }
});

test('employer domains are imported by NPI, PAC id, or name, with a verdict per row', async (t) => {
  const { operator } = operatorOn(url);
  const rows: [string, string][] = [
    ['"ALDER CLINIC, P.L.L.C.",https://www.alderclinic.com/contact', 'added'],
    ['The Alder Clinic,alderclinic.org', 'changed'],
    [`Alder Clinic East,east@mail.aldereast.com,${NPI}`, 'added'],
    ['Birch Group,birchgroup.org,,42', 'added'],
    ['Birch Group,birchgroup.org,,0000000042', 'unchanged'],
    ['Cedar Clinic,gmail.com', 'not_an_employer'],
    ['Cedar Clinic,fhir.athenahealth.com', 'not_an_employer'],
    ['Cedar Clinic,no domain', 'not_a_domain'],
    ['Cedar Clinic,co.uk', 'not_a_domain'],
    ['Cedar Clinic,cedar.com,1234567890', 'invalid_npi'],
    ['Cedar Clinic,cedar.com,,I2004', 'invalid_pac_id'],
    [',cedar.com', 'no_organization'],
    ['Cedar Clinic,', 'unchanged'],
  ];
  const verdicts = join(folder, 'domains.verdicts.csv');
  const imported = async (content: string) => {
    const path = await file('domains.csv', content);
    await operator('import', 'domains', path, '--verdicts', verdicts, ...WHY);
    return (await verdictsIn(verdicts)).map((line) => line.split(',')[1]);
  };
  const kept = async () => {
    const known = await db.drizzle.execute(
      sql`select key, domain from employer_domains order by key`,
    );
    return known.map(({ key, domain }) => [key, domain]);
  };
  const [first, ...rest] = rows;
  t.deepEqual(await imported(`organization,domain\n${first?.[0]}\n`), ['added']);
  t.deepEqual(
    await imported(
      `organization,domain,npi,pac_id\n${rest.map(([row]) => row).join('\n')}\n`,
    ),
    // The last of two rows about the same group counts.
    rest
      .map(([, verdict]) => verdict)
      .with(2, 'unchanged')
      .with(3, 'added'),
  );
  t.deepEqual(await kept(), [
    ['name:alderclinic', 'alderclinic.org'],
    [`npi:${NPI}`, 'aldereast.com'],
    ['pac_id:0000000042', 'birchgroup.org'],
  ]);

  t.deepEqual(
    await imported('Alder Clinic,alderclinic.org\n'),
    ['unchanged'],
    'without a header',
  );
  t.deepEqual(await imported('domain,pac_id\n,42\n'), ['removed']);
  t.is((await kept()).length, 2);
  const audited = (await listAudit(db, null, 1000)).filter(
    ({ action }) => action === 'domains.import',
  );
  t.deepEqual(
    audited.map(({ actor }) => actor),
    ['tester', 'tester', 'tester', 'tester'],
  );
});

const HASH = hashAddress('someone@clinic.com');

test('with --dry-run, an import of rows gives verdicts and stores nothing', async (t) => {
  const path = await file('tried.csv', 'value\ntried-clinic.com\nno domain\n');
  const args = ['import', 'suppressions', path, '--dry-run', '--json', ...WHY];
  const { code, stdout, stderr } = await operatorOn(url).operator(...args);
  t.deepEqual([code, stderr], [1, '']);
  t.like(JSON.parse(stdout), {
    rows: 2,
    verdicts: { acceptable: 1, not_a_domain: 1 },
    refused: [{ line: 3, verdict: 'not_a_domain' }],
  });
  const rows = await db.drizzle.execute(
    sql`select from suppressions where value = 'tried-clinic.com'`,
  );
  t.is(rows.length, 0);
});

test('an import never overwrites the file that it reads', async (t) => {
  const { operator } = operatorOn(url);
  const path = await file('itself.csv', '2000010019\n');
  const { code, stderr } = await operator(
    'import',
    'suppressions',
    path,
    '--verdicts',
    path,
    ...WHY,
  );
  t.is(code, 1);
  t.regex(stderr, /itself\.csv is the file to import; give another file for the output/);
  t.is(await readFile(path, 'utf8'), '2000010019\n');
});

test('a suppression list has one value per line, or a header and columns', async (t) => {
  const { operator } = operatorOn(url);
  const email = 'Listed.One@Clinic-Four.com';
  const bare: [string, string][] = [
    ['2000010019', 'added'],
    [HASH.toUpperCase(), 'added'],
    [email, 'added'],
    ['silent-clinic.com', 'added'],
    ['2000010019', 'already_there'],
    [hashAddress(email.toLowerCase()), 'already_there'],
    ['200001001', 'not_an_npi'],
    ['2000010010', 'not_an_npi'],
    ['2.00001E+09', 'not_an_npi'],
    ['jane.roe', 'not_a_domain'],
    ['silent.clinic.example', 'not_a_domain'],
    ['co.uk', 'not_a_domain'],
    ['no one@clinic.com', 'not_an_address'],
  ];
  const verdicts = join(folder, 'verdicts.csv');
  const imported = async (path: string) => {
    const args = ['import', 'suppressions', path, '--verdicts', verdicts, ...WHY];
    const { stdout } = await operator(...args, '--json');
    return JSON.parse(stdout);
  };
  const path = await file('list.txt', bare.map(([value]) => value).join('\n'));
  t.like(await imported(path), {
    rows: 13,
    verdicts: { added: 4, already_there: 2, not_an_npi: 3, not_a_domain: 3 },
  });
  t.deepEqual(
    await verdictsIn(verdicts),
    bare.map(([, verdict], n) => `${n + 1},${verdict}`),
  );
  t.like(await imported(path), { verdicts: { already_there: 6 } });

  const columns: [string, string][] = [
    ['"asked by phone, twice",npi,2000010027', 'added'],
    ['by mail from them@clinic.com,email,other.one@clinic-four.com', 'added'],
    [',sha256,123', 'not_a_hash'],
    [',npi,clinic.com', 'not_an_npi'],
    [',domain,2.000000069E9', 'not_a_domain'],
    [',email,jo@clinic.com,hart@clinic.com', 'too_many_values'],
    [',person,2000010035', 'unknown_kind'],
    [',,2000010043', 'added'],
  ];
  t.like(
    await imported(
      await file(
        'list.csv',
        `reason,kind,value\n${columns.map(([row]) => row).join('\n')}\n`,
      ),
    ),
    {
      rows: 8,
    },
  );
  t.deepEqual(
    await verdictsIn(verdicts),
    columns.map(([, verdict], n) => `${n + 2},${verdict}`),
  );

  const rows = await db.drizzle.execute(
    sql`select * from suppressions where origin = 'import'`,
  );
  t.false(JSON.stringify(rows).includes('@'), 'the list itself names nobody');
  t.is(rows.find(({ value }) => value === '2000010027')?.reason, 'asked by phone, twice');
  const [own] = await db.drizzle.execute(sql`
    select is_suppressed('2000010019', null) and is_suppressed('2000099999', 'listed.one@clinic-four.com')
       and is_suppressed('2000099999', 'x@mail.silent-clinic.com') as all`);
  t.is(own?.all, true);
});

/** Returns the bytes of a text in big-endian UTF-16, with a byte order mark. */
const bigEndian = (text: string) => Buffer.from(`\ufeff${text}`, 'utf16le').swap16();

for (const [form, bytesOf] of [
  ['UTF-16', (text) => Buffer.from(`\ufeff${text}`, 'utf16le')],
  ['UTF-16 without a mark', (text) => Buffer.from(text, 'utf16le')],
  ['big-endian UTF-16', bigEndian],
  ['UTF-8 with a mark', (text) => Buffer.from(`\ufeff${text}`)],
  ['a separator line', (text) => Buffer.from(`sep=,\r\n${text}`)],
  ['semicolons', (text) => Buffer.from(text.replaceAll(',', ';'))],
  ['old line ends', (text) => Buffer.from(text.replaceAll('\r\n', '\r'))],
] as [string, (text: string) => Buffer][]) {
  test.serial(`all people in a spreadsheet with ${form} are suppressed`, async (t) => {
    const { json } = operatorOn(url);
    await db.drizzle.execute(sql`delete from suppressions`);
    const email = 'opted.out@clinic-five.com';
    const values = [
      '2.000000069E9',
      '2.00004001600E+09',
      '"=""2000040024"""',
      "'2000040032",
      '2000040040.00',
      '\u00a02000040057\u200b',
      'NPI: 2000040065',
      `"\u00a0${email.toUpperCase()}\u00a0"`,
      '\u200bsilent-clinic-five.com',
    ];
    const lines = ['value,reason', ...values.map((value) => `${value},asked`)];
    const path = await file('disguised.csv', bytesOf(`${lines.join('\r\n')}\r\n`));
    t.like(await json('import', 'suppressions', path, ...WHY), {
      verdicts: { added: values.length },
      refused: [],
    });
    const kept = await db.drizzle.execute<{ value: string }>(
      sql`select value from suppressions`,
    );
    t.deepEqual(
      kept.map(({ value }) => value).sort(),
      [
        '2000000069',
        '2000040016',
        '2000040024',
        '2000040032',
        '2000040040',
        '2000040057',
        '2000040065',
        hashAddress(email),
        'silent-clinic-five.com',
      ].sort(),
    );
  });
}

test('an import of own addresses or domains reads an NPI as spreadsheets show it', async (t) => {
  const { json } = operatorOn(url);
  const emails = await file(
    'shown.csv',
    Buffer.from('\ufeffNPI\temail\n2.000010084E9\tjane@clinic-six.com\n', 'utf16le'),
  );
  const { stdout } = await spawnOperator(url, ['import', 'emails', emails, '--json']);
  t.like(JSON.parse(stdout), { verdicts: { candidate: 1 } });
  t.like(await stored('jane@clinic-six.com'), { npi: '2000010084' });
  const domains = await file('shown-domains.csv', 'npi;domain\n2000010084.0;six.com\n');
  t.like(await json('import', 'domains', domains, ...WHY), { verdicts: { added: 1 } });
  const known = await db.drizzle.execute(
    sql`delete from employer_domains where key = 'npi:2000010084' returning domain`,
  );
  t.is(known[0]?.domain, 'six.com');
});

test('an import names the line of each row that it refuses, and exits with 1', async (t) => {
  const { operator } = operatorOn(url);
  const path = await file('refused.txt', 'quiet-clinic-six.com\nNobody Knows\n');
  const { code, stdout } = await operator('import', 'suppressions', path, ...WHY);
  t.is(code, 1);
  t.regex(stdout, /^REFUSED ROWS\nLINE +VERDICT *\n +2 +not_a_domain$/m);
  t.false(stdout.includes('Nobody'));
});

test('an import reads a workbook, and refuses the rows above its header', async (t) => {
  const { operator } = operatorOn(url);
  const rows = [['Objections'], ['Value', 'Kind'], [2_000_040_016, 'npi'], ['x', 'npi']];
  const workbook = await workbookOf([
    { name: 'List', rows },
    { name: 'Notes', state: 'hidden', rows: [['nothing']] },
  ]);
  const path = await file('objections.xlsx', workbook);
  const { code, stdout } = await operator('import', 'suppressions', path, ...WHY);
  t.is(code, 1);
  t.regex(stdout, /^Only the sheet "List" is read, and not "Notes" \(hidden\)\.$/m);
  t.regex(
    stdout,
    /^REFUSED ROWS\nLINE +VERDICT *\n +1 +above_header *\n +4 +not_an_npi$/m,
  );
  t.regex(stdout, /^(?:added|already_there) +1$/m);
  const { stdout: data } = await operator(
    'import',
    'suppressions',
    path,
    '--dry-run',
    '--json',
  );
  t.regex(data, /"notes": ?\[\s*"Only the sheet/);
});

test('an import refuses a workbook whose sheets or formulas would be skipped', async (t) => {
  const { operator } = operatorOn(url);
  const roster = { name: 'Old roster', rows: [['value'], [2_000_020_091]] };
  const emails = { name: 'By email', rows: [['value'], ['jane@clinic-one.com']] };
  const formula = { attributes: '', xml: '<f>B2&amp;"@clinic-one.com"</f><v></v>' };
  const cases = [
    [[emails, roster], /has several sheets with text: By email, Old roster\. Keep one/],
    [[{ name: 'A', rows: [['value'], [formula], [2_000_020_091]] }], /has formulas/],
  ] as const;
  for (const [sheets, problem] of cases) {
    const path = await file('skipped.xlsx', await workbookOf(sheets));
    const { code, stderr } = await operator('import', 'suppressions', path, ...WHY);
    t.is(code, 1);
    t.regex(stderr, problem);
  }
  const rows = await db.drizzle.execute(
    sql`select from suppressions where value = '2000020091'`,
  );
  t.is(rows.length, 0);
});

test('a file that is neither CSV nor a workbook is refused as a whole', async (t) => {
  const { operator } = operatorOn(url);
  for (const [content, problem] of [
    ['PK\u0003\u0004 xl/workbook.xml', /is not an Excel workbook that can be read/],
    ['value\n2000020091\n"never closed\n2000020109\n', /line 3 that is not closed/],
  ] as const) {
    const path = await file('not.csv', content);
    const { code, stderr } = await operator('import', 'suppressions', path, ...WHY);
    t.is(code, 1);
    t.regex(stderr, problem);
  }
  const rows = await db.drizzle.execute(
    sql`select from suppressions where value in ('2000020091', '2000020109')`,
  );
  t.is(rows.length, 0);
});

test("a free-mail domain in a list of suppressions needs --yes, but other rows don't", async (t) => {
  const { operator, text } = operatorOn(url);
  await db.drizzle.execute(sql`
    insert into stored_emails (npi, email, verdict, source)
    values ('2000010019', 'jo@yahoo.com', 'unknown', 'test'), ('2000010019', 'jo@not-yahoo.com', 'unknown', 'test')`);
  const path = await file('free-mail.txt', 'yahoo.com\nquiet-clinic.com\n');
  const held = await operator('import', 'suppressions', path, '--json');
  t.is(held.code, 1);
  t.like(JSON.parse(held.stdout), {
    verdicts: { free_mail: 1, added: 1 },
    unconfirmed: {
      domains: ['yahoo.com'],
      stored_emails: 1,
      results: 0,
      organizations: 0,
    },
  });
  const asText = await operator('import', 'suppressions', path);
  t.regex(asText.stdout, /Add --yes to suppress these domains too\.\n$/);
  const suppressed = async (value: string) =>
    (await db.drizzle.execute(sql`select from suppressions where value = ${value}`))
      .length;
  t.deepEqual(
    [await suppressed('yahoo.com'), await suppressed('quiet-clinic.com')],
    [0, 1],
  );
  await text('import', 'suppressions', path, '--yes');
  t.is(await suppressed('yahoo.com'), 1);
});

test('suppressing a free-mail domain by command shows its effect and needs --yes', async (t) => {
  const { operator, json } = operatorOn(url);
  await db.drizzle.execute(sql`
    insert into stored_emails (npi, email, verdict, source) values ('2000010019', 'jo@aol.com', 'unknown', 'test')`);
  const held = await operator('suppress', 'add', 'AOL.com', ...WHY, '--json');
  t.is(held.code, 1);
  t.like(JSON.parse(held.stdout), {
    value: 'aol.com',
    suppressed: false,
    stored_emails: 1,
    results: 0,
  });
  const asText = await operator('suppress', 'add', 'aol.com', ...WHY);
  t.regex(
    asText.stdout,
    /Nothing was suppressed: .* Add --yes to suppress all of it\.\n$/,
  );
  const [row] = await db.drizzle.execute(
    sql`select 1 from suppressions where value = 'aol.com'`,
  );
  t.is(row, undefined);
  t.like(await json('suppress', 'add', 'aol.com', '--yes', ...WHY), {
    outcome: 'suppressed',
  });
});

test('every import is audited, and a killed one is marked as failed by the next', async (t) => {
  const { json } = operatorOn(url);
  const path = await file('record.txt', '2000020018\n');
  const first = await json<{ id: string }>(
    'import',
    'suppressions',
    path,
    '--reason',
    'list of May',
    '--actor',
    'ann',
  );
  const record = (await listAudit(db, null, 1000)).find(
    ({ subject }) => subject === first.id,
  );
  t.like(record, {
    action: 'suppressions.import',
    actor: 'ann',
    reason: 'list of May',
    details: { file: 'record.txt' },
  });
  await db.drizzle.execute(
    sql`update import_runs set state = 'running', finished_at = null where id = ${first.id}`,
  );
  const second = await json<{ id: string }>('import', 'suppressions', path);
  const runs = await db.drizzle.execute<{ id: string; state: string; counts: object }>(
    sql`select id, state, counts from import_runs where file = 'record.txt'`,
  );
  t.deepEqual(
    runs.map(({ id, state }) => [id, state]).sort(),
    [
      [first.id, 'failed'],
      [second.id, 'done'],
    ].sort(),
  );
  t.deepEqual(runs.find(({ id }) => id === second.id)?.counts, { already_there: 1 });
});

// Fails without `refuses` of `suppressionRows`.
test('a suppression list that has columns but no header is rejected as a whole', async (t) => {
  const { operator } = operatorOn(url);
  for (const text of [
    'domain,email\ngmail.com,jane@gmail.com\n',
    'domain;email\ngmail.com;jane@gmail.com\n',
  ]) {
    const { code, stderr } = await operator(
      'import',
      'suppressions',
      await file('columns.csv', text),
    );
    t.is(code, 1);
    t.regex(stderr, /one of the first 30 rows must be a header/);
  }
  const [row] = await db.drizzle.execute(
    sql`select 1 from suppressions where value = 'gmail.com'`,
  );
  t.is(row, undefined);
});

test('an import that cannot open a file says so in one sentence and is marked as failed', async (t) => {
  const { operator } = operatorOn(url);
  const missing = await operator('import', 'suppressions', join(folder, 'nowhere.csv'));
  t.is(missing.code, 1);
  t.regex(
    missing.stderr,
    /^operator: cannot open .*nowhere\.csv: there is no such file\n$/,
  );
  t.is((await operator('import', 'suppressions', folder)).code, 1);
  const path = await file('half.txt', '2000030017\n');
  const unwritable = await operator(
    'import',
    'suppressions',
    path,
    '--verdicts',
    join(folder, 'no', 'where'),
  );
  t.is(unwritable.code, 1);
  t.regex(unwritable.stderr, /cannot open .*where/);
  const [run] = await db.drizzle.execute(
    sql`select state from import_runs where file = 'half.txt'`,
  );
  t.is(run?.state, 'failed');
});
