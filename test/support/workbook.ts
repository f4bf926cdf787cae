import { buffer } from 'node:stream/consumers';
import { ZipFile } from 'yazl';

// Writes .xlsx workbooks part by part, as Excel and other programs do, also damaged ones.

const MAIN = 'http://schemas.openxmlformats.org/spreadsheetml/2006/main';
const RELATIONS = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships';
const PACKAGE = 'http://schemas.openxmlformats.org/package/2006';

/** A text is a shared string, as in Excel. An object is the XML of a cell, with its attributes. */
export type Cell =
  | string
  | number
  | null
  | { readonly attributes: string; readonly xml: string };

export interface SheetOf {
  readonly name: string;
  readonly state?: 'hidden' | 'veryHidden';
  /** The rows, or the XML of the sheet. A null is an empty row. */
  readonly rows: readonly (readonly Cell[] | null)[] | string;
  /** XML behind the rows, such as merged cells. */
  readonly after?: string;
}

/** Returns the bytes of a workbook with these sheets. */
export async function workbookOf(
  sheets: readonly SheetOf[],
  parts: Readonly<Record<string, string | null>> = {},
): Promise<Buffer> {
  const strings: string[] = [];
  const bodies = sheets.map((sheet) => sheetXml(sheet, strings));
  const all: Record<string, string | null> = {
    '[Content_Types].xml': `<Types xmlns="${PACKAGE}/content-types"><Default Extension="xml" ContentType="application/xml"/></Types>`,
    '_rels/.rels': relations([['officeDocument', 'xl/workbook.xml']]),
    'xl/workbook.xml': `<workbook xmlns="${MAIN}" xmlns:r="${RELATIONS}"><sheets>${sheets
      .map(
        ({ name, state }, n) =>
          `<sheet name="${escaped(name)}" sheetId="${n + 1}" r:id="rId${n + 1}"${state ? ` state="${state}"` : ''}/>`,
      )
      .join('')}</sheets></workbook>`,
    'xl/_rels/workbook.xml.rels': relations([
      ...sheets.map((_, n) => ['worksheet', `worksheets/sheet${n + 1}.xml`] as const),
      ['sharedStrings', 'sharedStrings.xml'],
      ['styles', 'styles.xml'],
    ]),
    'xl/sharedStrings.xml': `<sst xmlns="${MAIN}">${strings.map((text) => `<si><t xml:space="preserve">${escaped(text)}</t></si>`).join('')}</sst>`,
    // Style 1 shows few digits, and style 2 shows a date.
    'xl/styles.xml': `<styleSheet xmlns="${MAIN}"><cellXfs><xf numFmtId="0"/><xf numFmtId="11"/><xf numFmtId="14"/></cellXfs></styleSheet>`,
    ...Object.fromEntries(
      bodies.map((body, n) => [`xl/worksheets/sheet${n + 1}.xml`, body]),
    ),
    ...parts,
  };
  return await zipOf(all);
}

/** Returns a ZIP file. A part that is null is left out. */
export async function zipOf(
  parts: Readonly<Record<string, string | null>>,
): Promise<Buffer> {
  const zip = new ZipFile();
  for (const [name, text] of Object.entries(parts)) {
    if (text !== null) zip.addBuffer(Buffer.from(text), name);
  }
  zip.end();
  return await buffer(zip.outputStream);
}

function relations(
  targets: readonly (readonly [type: string, target: string])[],
): string {
  const all = targets.map(
    ([type, target], n) =>
      `<Relationship Id="rId${n + 1}" Type="${RELATIONS}/${type}" Target="${target}"/>`,
  );
  return `<Relationships xmlns="${PACKAGE}/relationships">${all.join('')}</Relationships>`;
}

function sheetXml({ rows, after = '' }: SheetOf, strings: string[]): string {
  if (typeof rows === 'string') return rows;
  const body = rows.map((row, r) => {
    const cells = (row ?? []).map((cell, c) =>
      cellXml(cell, `${letters(c)}${r + 1}`, strings),
    );
    return row === null ? '' : `<row r="${r + 1}">${cells.join('')}</row>`;
  });
  return `<worksheet xmlns="${MAIN}"><sheetData>${body.join('')}</sheetData>${after}</worksheet>`;
}

function cellXml(cell: Cell, at: string, strings: string[]): string {
  if (cell === null) return '';
  if (typeof cell === 'number') return `<c r="${at}"><v>${cell}</v></c>`;
  if (typeof cell === 'object') return `<c r="${at}" ${cell.attributes}>${cell.xml}</c>`;
  strings.push(cell);
  return `<c r="${at}" t="s"><v>${strings.length - 1}</v></c>`;
}

function letters(column: number): string {
  const rest = Math.floor(column / 26);
  return `${rest > 0 ? letters(rest - 1) : ''}${String.fromCharCode(65 + (column % 26))}`;
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}
