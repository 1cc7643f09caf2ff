/** The client of Heliograph in a browser or in Node. */

export type Bytes = Uint8Array | ArrayBuffer;
/** A row of a table: numbers, texts, and null for what is missing; or an object by the names of columns. */
export type Row = ArrayLike<number | string | boolean | null> | Record<string, number | string | boolean | null>;
export type Nested = number | ArrayLike<number> | readonly Nested[];
export interface Tensor {
  shape: number[];
  data: ArrayLike<number>;
}
/** The value of an input: nested lists, a typed array of one sample's elements in order, a tensor, or a row of a table. */
export type Value = Nested | Tensor | Row | readonly Row[];
export interface Output {
  name: string;
  shape: number[];
  data: Float64Array;
}
export interface Answer {
  label: number | null;
  votes: number | null;
  certified: boolean;
  radius: number;
  /** The radius that the votes show, with the same error: at least `radius`. */
  widestRadius: number;
  error: number;
  withdrawn: string;
  text: string;
}
export interface Receipt {
  request: string;
  samples?: number;
}
/** How a result is shared: `true`, or a function that stores the number of results that the key has shared, this one included. */
export type Share = boolean | ((count: number) => void | Promise<void>);
export type Asked = Message | Receipt | string;
export type Answers = Iterable<Message | Bytes> | AsyncIterable<Message | Bytes>;
export type Progress = (stage: string, done: number, total: number) => void;
export interface Running {
  progress?: Progress;
  signal?: AbortSignal;
}
export interface Costs {
  keys: number;
  keyBytes: number;
  largestKeyBytes: number;
  inputBytes: number;
  memoryBytes: number;
}
export interface TensorSpec {
  name: string;
  shape: number[];
  low: number | null;
  high: number | null;
  classes: number | null;
  columns: string[] | null;
  /** The type of the class labels of an output, which are its columns. */
  labels: "text" | "int" | "float" | "bool" | null;
  /** What the values of an output are: "probability", "decision function", or the unit of an amount. */
  unit: string | null;
  carried: boolean;
}

export class PublicPart {
  static read(bytes: Bytes, options?: { fingerprint?: string; insecure?: boolean; what?: string }): Promise<PublicPart>;
  readonly name: string;
  readonly fingerprint: string;
  readonly inputs: TensorSpec[];
  readonly outputs: TensorSpec[];
  readonly given: TensorSpec[];
  readonly carried: TensorSpec[];
  /** The samples in one ciphertext. */
  readonly samples: number;
  readonly predicted: Record<string, number>;
  readonly certificate: Record<string, number | string> | null;
  /** What keys, messages and memory take, in bytes. */
  readonly costs: Costs;
  /** Why what is encrypted for it can be read by others; empty if it cannot. */
  readonly weakness: string;
}

export type MessageKind =
  "encrypted inputs" | "encrypted outputs" | "carried values" | "inputs of a step" | "outputs of a step";

export class Message {
  static read(kind: MessageKind, bytes: Bytes, options?: { mostBytes?: number; what?: string }): Promise<Message>;
  readonly kind: MessageKind;
  readonly artifact: string;
  readonly client: string;
  readonly request?: string;
  readonly samples?: number;
  readonly blobs: Map<string, Uint8Array>;
  toBytes(): Promise<Uint8Array>;
  receipt(): Receipt;
}

export interface Options {
  insecure?: boolean;
  mostMemory?: number;
}

interface Calls {
  readonly part: PublicPart;
  readonly id: string;
  readonly keys: { name: string; bytes: number }[];
  save(options?: { passphrase?: string }): Promise<Uint8Array>;
  evaluationKey(name: string, options?: { signal?: AbortSignal }): Promise<Uint8Array>;
  evaluationKeys(options?: Running & { names?: string[] }): AsyncGenerator<{ name: string; bytes: Uint8Array }>;
  encrypt(...values: Value[]): Promise<Message>;
  encryptMany(...values: Value[][]): AsyncGenerator<Message>;
  encryptCarried(values: Record<string, Value>): Promise<Message>;
  decrypt(answer: Message | Bytes, options?: { of?: Asked; share?: Share }): Promise<Output[]>;
  decryptMany(answers: Answers, options: { of: Iterable<Asked> }): Promise<Output[]>;
  decryptCarried(values: Message | Bytes): Promise<Output[]>;
  answer(answer: Message | Bytes, options?: { of?: Asked }): Promise<Answer>;
  close(): void;
}

/** The client where it is called; it blocks the page while it computes. */
export class Client {
  static create(part: PublicPart, options?: Options): Promise<Client>;
  static load(keyFile: Bytes, options?: Options & { passphrase?: string; part?: PublicPart; shared?: number }): Promise<Client>;
}

/** The client in a Web Worker (in Node: a worker thread). */
export class WorkerClient {
  static create(part: Bytes, options?: Options & { fingerprint?: string }): Promise<WorkerClient>;
  static load(
    keyFile: Bytes,
    options: Options & { part: Bytes; passphrase?: string; fingerprint?: string; shared?: number },
  ): Promise<WorkerClient>;
}
// Both have the calls above.
export interface Client extends Calls {}
export interface WorkerClient extends Calls {}

export class RemoteServer {
  constructor(
    url: string,
    token: string,
    options?: { plainHttp?: boolean; patienceMs?: number; timeoutMs?: number; mostAnswerBytes?: number },
  );
  readonly url: string;
  artifacts(options?: { signal?: AbortSignal }): Promise<{ artifact: string; name: string }[]>;
  public(artifact?: string, options?: { insecure?: boolean; signal?: AbortSignal }): Promise<PublicPart>;
  publicBytes(artifact?: string, options?: { signal?: AbortSignal }): Promise<{ artifact: string; bytes: Uint8Array }>;
  register(client: Client | WorkerClient, options?: Running): Promise<void>;
  forget(client: Client | WorkerClient, options?: { signal?: AbortSignal }): Promise<void>;
  run(inputs: Message, options?: Running): Promise<Message>;
  step(inputs: Message, carried: Message, options?: Running): Promise<[Message, Message]>;
}

/** The class that a classifier means: the place of the largest number, or its label if `spec` is the output's and has labels. */
export function classOf(output: { shape: number[]; data: ArrayLike<number> }): number;
export function classOf(output: { shape: number[]; data: ArrayLike<number> }, spec: TensorSpec): number | string | boolean;
export const MOST_MEMORY: number;

export class HeliographError extends Error {
  readonly what: string;
  readonly where: string;
  readonly why: string;
  readonly hint: string;
}
export class ProgramError extends HeliographError {}
export class RangeError extends ProgramError {}
export class WireError extends HeliographError {}
export class SecurityError extends HeliographError {}
export class TooLittleMemoryError extends HeliographError {}
export class CancelledError extends HeliographError {}
export class InternalError extends HeliographError {}
